#pragma once
// Splitting of text into words, inside which merges happen: the section `pre_tokenizer`.

#include <memory>
#include <string>
#include <vector>

#include "text/bpe/passage.h"
#include "text/bpe/patterns.h"
#include "text/bpe/regex.h"

namespace ring::bpe {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Calls take(word) for each word in order; words are not empty. A word is valid only during the call.
  virtual void split(const TextSlice&, const SliceFn& take) const = 0;
};

// Treatment of a pattern's matches, with the names used in the file.
enum class Behavior : unsigned char { removed, isolated, merged_with_previous, merged_with_next, contiguous };

std::unique_ptr<PreTokenizer> split_by(Pattern);
std::unique_ptr<PreTokenizer> split_at(Regex, Behavior, bool invert);
// Splits at a literal, which must not be empty.
std::unique_ptr<PreTokenizer> split_at(std::string literal, Behavior, bool invert);
std::unique_ptr<PreTokenizer> digits(bool individual);
std::unique_ptr<PreTokenizer> prefix_space();  // adds a space if the text does not begin with one
enum class Prepending : unsigned char { never, first, always };
std::unique_ptr<PreTokenizer> metaspace(std::string replacement, Prepending, bool split);
std::unique_ptr<PreTokenizer> sequence(std::vector<std::unique_ptr<PreTokenizer>>);

}  // namespace ring::bpe
