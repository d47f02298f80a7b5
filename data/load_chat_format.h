#pragma once
// The chat template that goes with a tokenizer.

#include <string>

#include "text/chat/format.h"

namespace ring {

class Tokenizer;

// As a run keeps it: Format::json().
inline constexpr const char* kChatTemplateFile = "chat_template.json";

// The one that came with a tokenizer: kept with it, in chat_template.json of a run or in a corpus, else published with
// it, in chat_template.jinja or tokenizer_config.json. Without a source where there is none. A source that is given
// takes the place of theirs, however that is written. Error: a file of them cannot be read.
chat::Format chat_format_beside(const std::string& tokenizer_spec, const std::string& source = "");

// choice: a name (chat::template_names()), a file with a template, or empty: the one that came with the tokenizer. The
// tokens that it names are those of the tokenizer's files, or what the tokenizer puts around a text. Error: there is
// none, or no such file.
chat::Format load_chat_format(const std::string& choice, const std::string& tokenizer_spec, const Tokenizer&);

}  // namespace ring
