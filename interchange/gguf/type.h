#pragma once
// Value types in a GGUF file. Numbers and sizes are defined by ggml (https://github.com/ggml-org/ggml).

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ring {

enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

// Values per q8_0 block: one f16 scale, and one signed byte per value. Row lengths must be a multiple of kQ8Block.
inline constexpr std::int64_t kQ8Block = 32;

std::string_view gguf_name(GgufType);                      // returns "F32", "F16", "BF16" or "Q8_0"
std::uint64_t gguf_bytes(GgufType, std::uint64_t values);  // returns the bytes of `values` values
void gguf_round(GgufType, const float* values, std::size_t count,
                std::byte* to);  // throws Error if a value is out of range

}  // namespace ring
