#pragma once
// The tokens that stand around each text for a model, where the text does not have them already.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ring {

// Returns how many of the first tokens of `before` have to be put in front of `text`, whose own first tokens may be the
// rest of them, as in a text that begins with "<s>".
inline std::size_t missing_before(std::span<const std::int32_t> before, std::span<const std::int32_t> text) {
  for (std::size_t missing = 0; missing < before.size(); ++missing) {
    const auto rest = before.subspan(missing);
    if (rest.size() <= text.size() && std::ranges::equal(rest, text.first(rest.size()))) return missing;
  }
  return before.size();
}

// Returns how many of the last tokens of `after` have to be put behind `text`.
inline std::size_t missing_after(std::span<const std::int32_t> after, std::span<const std::int32_t> text) {
  for (std::size_t missing = 0; missing < after.size(); ++missing) {
    const auto rest = after.first(after.size() - missing);
    if (rest.size() <= text.size() && std::ranges::equal(rest, text.last(rest.size()))) return missing;
  }
  return after.size();
}

}  // namespace ring
