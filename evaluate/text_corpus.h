#pragma once
// A corpus of text files that lasts as long as it is read: what is evaluated needs no `data prepare`.

#include "data/config.h"
#include "data/prepare.h"
#include "text/chat/format.h"

namespace ring {

// All of the text is the training split. options: inputs, and how to read them; tokenizer and output are filled in.
// Its file lies in the folder for temporary files and has no name any more when this returns. Error: see
// prepare_corpus(). The format writes conversations, unless options.chat_template does.
Corpora corpus_of_text(PrepareOptions options, const Tokenizer&, const chat::Format&);

}  // namespace ring
