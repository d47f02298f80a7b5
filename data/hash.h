#pragma once
// xxh3-64, the checksum of tokenizers, corpora and checkpoints.

#include <cstdint>
#include <string>
#include <string_view>

namespace ring {

std::uint64_t xxh3(std::string_view bytes, std::uint64_t seed = 0);
std::string hex64(std::uint64_t value);  // 16 lower-case digits

}  // namespace ring
