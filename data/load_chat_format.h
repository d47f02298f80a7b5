#pragma once
// Loads the chat template that belongs to a tokenizer.

#include <string>

#include "text/chat/format.h"

namespace ring {

class Tokenizer;

// Name of a run's chat template file, which holds Format::json().
inline constexpr const char* kChatTemplateFile = "chat_template.json";

// Returns the chat template that came with a tokenizer: stored with it (chat_template.json of a run, or in a corpus),
// otherwise published with it (chat_template.jinja or tokenizer_config.json). The source is empty if there is none.
// `source`, if not empty, replaces the template found there, whatever its syntax. Throws Error if one of these files
// cannot be read.
chat::Format chat_format_beside(const std::string& tokenizer_spec, const std::string& source = "");

// Loads the chat template of `choice`: a name (chat::template_names()), a template file, or if empty the one that came
// with the tokenizer. The special tokens that it refers to come from the tokenizer's files, or else are those that the
// tokenizer puts around a text. Throws Error if there is no template or no such file.
chat::Format load_chat_format(const std::string& choice, const std::string& tokenizer_spec, const Tokenizer&);

}  // namespace ring
