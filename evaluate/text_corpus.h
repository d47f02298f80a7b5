#pragma once
// A temporary corpus made from text files: texts can be evaluated without `data prepare`.

#include "data/config.h"
#include "data/prepare.h"
#include "text/chat/format.h"

namespace ring {

// Returns a corpus whose training split has all of the text. options: the inputs and how to read them; this function
// sets the tokenizer and the output. The corpus file is in the folder for temporary files and already unlinked. The
// chat format is used to write conversations, unless options.chat_template is given. Throws Error like
// prepare_corpus().
Corpora corpus_of_text(PrepareOptions options, const Tokenizer&, const chat::Format&);

}  // namespace ring
