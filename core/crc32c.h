#pragma once
// CRC-32C (Castagnoli), RFC 3720, appendix B.4.

#include <cstdint>
#include <string_view>

namespace ring {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace ring
