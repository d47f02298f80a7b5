#pragma once
// Normalization of text before it is split into words: the section `normalizer`.

#include <memory>
#include <string>
#include <vector>

#include "text/bpe/passage.h"
#include "text/bpe/unicode.h"

namespace ring::bpe {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Returns true if the text is known to stay unchanged; returns false if only apply() can tell.
  virtual bool keeps(const TextSlice&) const = 0;
  virtual void apply(Passage&) const = 0;
};

std::unique_ptr<Normalizer> unicode_form(unicode::Form);
std::unique_ptr<Normalizer> lowercase();
std::unique_ptr<Normalizer> prepend(std::string prefix);
// Replaces literal text; `from` must not be empty.
std::unique_ptr<Normalizer> replace(std::string from, std::string to);
std::unique_ptr<Normalizer> sequence(std::vector<std::unique_ptr<Normalizer>>);

}  // namespace ring::bpe
