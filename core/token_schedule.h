#pragma once
// A number that changes as a run sees tokens. Settings write [[0, 32], [1e9, 64]]: 32 at first, and 64 in every step
// before which at least 1e9 tokens were trained.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

struct TokenChange {
  std::int64_t tokens = 0;  // from so many on
  double value = 0;         // an integer of up to 53 bits, or any number
  bool operator==(const TokenChange&) const = default;
};

// By ascending tokens, the first at 0, at least two and at most kMostTokenChanges; or empty: nothing changes.
using TokenSchedule = std::vector<TokenChange>;
inline constexpr std::size_t kMostTokenChanges = 256;

// What holds once so many tokens were trained; constant: where nothing changes.
template <class Number>
Number value_at(const TokenSchedule& changes, std::int64_t tokens, Number constant) {
  Number value = constant;
  for (const TokenChange& c : changes)
    if (c.tokens <= tokens) value = static_cast<Number>(c.value);
  return value;
}

}  // namespace ring
