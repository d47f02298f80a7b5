#pragma once
// Prompts that a model continues.

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace ring {

// Returns the tokens of a text, preceded by the tokens with which this tokenizer begins every text. Returns at least
// one token: an empty text stands for the beginning of a document. Throws Error if the text is empty and the tokenizer
// has no begin token.
std::vector<std::int32_t> prompt_tokens(const Tokenizer&, const std::string& text);

// Throws Error if `tokens` tokens leave no capacity for another one in the model's context. what: "prompt" or
// "conversation", for the message.
void check_prompt_fits(std::size_t tokens, std::int64_t context, const std::string& what);

}  // namespace ring
