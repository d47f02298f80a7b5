#pragma once
// The chat template that goes with a tokenizer.

#include <string>

#include "data/chat/format.h"

namespace ring {

class Tokenizer;

// choice: a name (chat::template_names()), a file with a template, or empty: the one that came with the tokenizer, in
// chat_template.jinja or tokenizer_config.json beside its tokenizer.json, or in the corpus that it is of. The tokens
// that it names are those of the tokenizer's files, or what the tokenizer puts around a text. Error: there is none, or
// no such file.
chat::Format load_chat_format(const std::string& choice, const std::string& tokenizer_spec, const Tokenizer&);

}  // namespace ring
