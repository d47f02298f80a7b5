#pragma once
// Sizes in bytes as people write them, in settings and on the command line.

#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"

namespace ring {

// "50MB" is 50,000,000 and "50 MiB" 52,428,800; k, m, g and t alone are as with a b, and letters may be of either case.
// "1.5GB" is 1,500,000,000: fractions of a unit are rounded down to whole bytes.
// Without a unit it is a number as in settings. Returns what is wrong, empty when `bytes` was filled.
std::string parse_bytes(const std::string& text, std::int64_t& bytes);

// in_range() for a setting in bytes: it may have a unit.
Check in_bytes(long double least, long double most);
bool is_in_bytes(const Check&);

// The same for a setting that is a share up to 1 and, where it has a unit or is larger, in bytes.
Check share_or_bytes(long double least, long double most);
// What is wrong with a size that was given with a unit, if a setting with these checks would take it for a share, as
// 1B. Empty: nothing.
std::string not_a_share(const std::string& text, std::int64_t bytes, const std::vector<Check>&);

}  // namespace ring
