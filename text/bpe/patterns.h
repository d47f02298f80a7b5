#pragma once
// Pre-tokenization patterns of published byte-level vocabularies, as scanners: one pass, without backtracking.

#include <cstddef>
#include <optional>
#include <string_view>

namespace ring::bpe {

enum class Pattern : unsigned char {
  gpt2,    // contractions; letters, numbers or punctuation after an optional space; remaining white space
  llama3,  // contractions in any case; numbers of up to three digits; punctuation with the line ends after it
  qwen2    // same as llama3, but with single digits
};

std::string_view regex_of(Pattern);  // returns the pattern as written in a tokenizer.json
std::optional<Pattern> pattern_of(std::string_view regex);
std::optional<Pattern> pattern_named(std::string_view name);  // accepts "gpt2", "llama3" or "qwen2"

// Returns the end of the piece that starts at `at`, which must be < text.size(). A byte that is not valid UTF-8 counts
// as punctuation.
std::size_t piece_end(Pattern, std::string_view text, std::size_t at);

}  // namespace ring::bpe
