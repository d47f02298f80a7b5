#pragma once
// What a model goes on with.

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace ring {

// The tokens of a text, after those that each text of this tokenizer begins with; at least one: an empty text is the
// beginning of a document. Error: the tokenizer has nothing to begin with.
std::vector<std::int32_t> prompt_tokens(const Tokenizer&, const std::string& text);

}  // namespace ring
