#pragma once
// How the data commands write numbers and tokens for people.

#include <cstdint>
#include <string>
#include <string_view>

namespace ring {

std::string with_commas(std::uint64_t n);     // 1,234,567
std::string fixed(double value, int digits);  // 3.14
std::string in_bytes(double bytes);           // 12.3 MB
std::string visible(std::string_view text);   // newlines, tabs and control characters as \n, \t, \x01
std::string shortened(std::string text,
                      std::size_t bytes);  // cut between characters, with "..." when something is missing

}  // namespace ring
