#pragma once
// The tokens that a model expects before and after each text, e.g. "<s>". They are added only if the text lacks them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace ring {

// Returns how many leading tokens of `before` must be prepended to `text`. `text` may already begin with the remaining
// tokens of `before`, e.g. if it begins with "<s>".
inline std::size_t missing_before(std::span<const std::int32_t> before, std::span<const std::int32_t> text) {
  for (std::size_t missing = 0; missing < before.size(); ++missing) {
    const auto rest = before.subspan(missing);
    if (rest.size() <= text.size() && std::ranges::equal(rest, text.first(rest.size()))) return missing;
  }
  return before.size();
}

// Returns how many trailing tokens of `after` must be appended to `text`.
inline std::size_t missing_after(std::span<const std::int32_t> after, std::span<const std::int32_t> text) {
  for (std::size_t missing = 0; missing < after.size(); ++missing) {
    const auto rest = after.first(after.size() - missing);
    if (rest.size() <= text.size() && std::ranges::equal(rest, text.last(rest.size()))) return missing;
  }
  return after.size();
}

// Returns the tokens with which an otherwise empty text begins, like prefix_token_id of lm-evaluation-harness: the
// tokens before each text; else the begin-of-text token; else the end-of-text token; empty if the tokenizer has none of
// them.
inline std::vector<std::int32_t> empty_text(const Tokenizer& tokenizer) {
  if (std::vector<std::int32_t> before = tokenizer.before_text(); !before.empty()) return before;
  for (const auto token : {tokenizer.bos(), tokenizer.end_of_text()})
    if (token) return {*token};
  return {};
}

}  // namespace ring
