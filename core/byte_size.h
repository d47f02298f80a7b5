#pragma once
// Sizes in bytes as users write them in settings and on the command line.

#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"

namespace ring {

// Parses "50MB" (50,000,000) or "50 MiB" (52,428,800). Units are case-insensitive, and the b may be missing (k, m, g,
// t). A fraction of a unit is rounded down to whole bytes: "1.5GB" is 1,500,000,000. A number without a unit follows
// the rules of an integer setting. Returns what is wrong, or "" if `bytes` was set.
std::string parse_bytes(const std::string& text, std::int64_t& bytes);

// Like in_range(), for a setting in bytes, which may be given with a unit.
Check bytes_in_range(long double min, long double max);
bool is_byte_range(const Check&);

// Like bytes_in_range(), for a setting that is a share if it is at most 1, and a number of bytes if it is larger or has
// a unit.
Check share_or_bytes(long double min, long double max);
// Refuses one byte with a unit ("1B") for a setting with a share_or_bytes() check, which would take the value 1 for a
// share. Returns what is wrong, or "" if nothing is.
std::string one_byte_problem(const std::string& text, std::int64_t bytes, const std::vector<Check>&);

}  // namespace ring
