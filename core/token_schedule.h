#pragma once
// A number that changes with the tokens trained so far. Settings write [[0, 32], [1e9, 64]]: 32 at first, and 64 in
// every step that begins after at least 1e9 tokens.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

struct TokenChange {
  std::int64_t tokens = 0;  // `value` applies from this number of tokens on
  double value = 0;         // an integer of up to 53 bits, or any number
  bool operator==(const TokenChange&) const = default;
};

// Sorted by tokens, the first at 0, with 2 to kMaxTokenChanges entries. Empty if the number never changes.
using TokenSchedule = std::vector<TokenChange>;
inline constexpr std::size_t kMaxTokenChanges = 256;

// Returns the value after `tokens` trained tokens; `constant` if the schedule is empty.
template <class Number>
Number value_at(const TokenSchedule& changes, std::int64_t tokens, Number constant) {
  Number value = constant;
  for (const TokenChange& c : changes)
    if (c.tokens <= tokens) value = static_cast<Number>(c.value);
  return value;
}

}  // namespace ring
