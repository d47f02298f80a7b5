#pragma once
// Loads the chat template that belongs to a tokenizer.

#include <string>

#include "text/chat/format.h"

namespace ring {

class Tokenizer;

// Name of a run's chat template file, which holds Format::to_json().
inline constexpr const char* kChatTemplateFile = "chat_template.json";

// Returns the chat template that came with a tokenizer: the one stored with it (chat_template.json of a run, or in a
// corpus), else the one published with it (chat_template.jinja or tokenizer_config.json). The format's source is empty
// if there is none. If `source` is not empty, it replaces the template that was found, even one with invalid syntax.
// Throws Error if one of these files cannot be read.
chat::Format chat_format_beside(const std::string& tokenizer_spec, const std::string& source = "");

// Loads the chat template that `choice` selects: a name (chat::template_names()), a template file or, if `choice` is
// empty, the template that came with the tokenizer. The special tokens that the template refers to come from the
// tokenizer's files; missing ones are the tokens that the tokenizer puts around a text. Throws Error if there is no
// template or no such file.
chat::Format load_chat_format(const std::string& choice, const std::string& tokenizer_spec, const Tokenizer&);

}  // namespace ring
