#pragma once
// The patterns that published byte-level vocabularies divide text by, as scanners: one pass, without backtracking.

#include <cstddef>
#include <optional>
#include <string_view>

namespace ring::bpe {

enum class Pattern : unsigned char {
  gpt2,    // contractions, letters, numbers and other marks with a space before them; the rest of blank space
  llama3,  // contractions in any case, numbers of up to three digits, marks with the ends of lines behind them
  qwen2    // as llama3 with single digits
};

std::string_view regex_of(Pattern);  // as a tokenizer.json says it
std::optional<Pattern> pattern_of(std::string_view regex);
std::optional<Pattern> pattern_named(std::string_view name);  // gpt2, llama3, qwen2

// The end of the first piece of text[at..]; a byte that is no UTF-8 counts as a mark. at is below the size.
std::size_t piece_end(Pattern, std::string_view text, std::size_t at);

}  // namespace ring::bpe
