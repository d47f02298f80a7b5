#pragma once
// What a model goes on with.

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace ring {

// The tokens of a text, after those that each text of this tokenizer begins with; at least one: an empty text is the
// beginning of a document. Error: the tokenizer has nothing to begin with.
std::vector<std::int32_t> prompt_tokens(const Tokenizer&, const std::string& text);

// Error: what goes on with so many tokens has no room for another one in the model's context. what: "prompt" or
// "conversation".
void check_room(std::size_t tokens, std::int64_t context, const std::string& what);

}  // namespace ring
