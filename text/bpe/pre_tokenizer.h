#pragma once
// How a tokenizer.json divides text into the words that merges stay within: the section `pre_tokenizer`.

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
  // Calls take for each word in order; none is empty. What it gives lives as long as the call.
  virtual void split(const Stretch&, const TakeStretch& take) const = 0;
};

// What becomes of the matches of a pattern, by the names of the file.
enum class Behavior : unsigned char { removed, isolated, merged_with_previous, merged_with_next, contiguous };

std::unique_ptr<PreTokenizer> split_by(Pattern);
std::unique_ptr<PreTokenizer> split_at(Regex, Behavior, bool invert);
std::unique_ptr<PreTokenizer> split_at(std::string literal, Behavior, bool invert);  // not empty
std::unique_ptr<PreTokenizer> digits(bool individual);
std::unique_ptr<PreTokenizer> prefix_space();  // where text does not begin with a space
enum class Prepending : unsigned char { never, first, always };
std::unique_ptr<PreTokenizer> metaspace(std::string replacement, Prepending, bool split);
std::unique_ptr<PreTokenizer> sequence(std::vector<std::unique_ptr<PreTokenizer>>);

}  // namespace ring::bpe
