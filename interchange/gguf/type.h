#pragma once
// The types in which a GGUF file keeps values. Numbers and sizes: ggml's (https://github.com/ggml-org/ggml).

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ring {

enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

// Values that q8_0 keeps together, as a scale in f16 and one signed byte each; a row is a multiple of it.
inline constexpr std::int64_t kQ8Block = 32;

std::string_view gguf_name(GgufType);                                 // "F32", "F16", "BF16", "Q8_0"
std::uint64_t gguf_bytes(GgufType, std::uint64_t values);             // of so many
void gguf_round(GgufType, const float*, std::size_t, std::byte* to);  // Error: a value is beyond what the type holds

}  // namespace ring
