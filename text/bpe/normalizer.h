#pragma once
// How a tokenizer.json changes text before it is divided: the section `normalizer`.

#include <memory>
#include <string>
#include <vector>

#include "text/bpe/passage.h"
#include "text/bpe/unicode.h"

namespace ring::bpe {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Whether it leaves the text as it is; false where that is not known without doing it.
  virtual bool keeps(const Stretch&) const = 0;
  virtual void apply(Passage&) const = 0;
};

std::unique_ptr<Normalizer> unicode_form(unicode::Form);
std::unique_ptr<Normalizer> lowercase();
std::unique_ptr<Normalizer> prepend(std::string front);
std::unique_ptr<Normalizer> replace(std::string from, std::string to);  // literally; `from` is not empty
std::unique_ptr<Normalizer> sequence(std::vector<std::unique_ptr<Normalizer>>);

}  // namespace ring::bpe
