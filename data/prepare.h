#pragma once
// Makes a corpus from text files: one thread reads and cuts, `threads` encode, the caller's writes in order. Memory is
// bounded by a fixed number of pieces in flight; the result does not depend on the number of threads. Or from tokens
// that Megatron-LM wrote (data/megatron.h), which are copied.

#include <functional>

#include "data/preparation.h"

namespace ring {

void warn_of(const PrepareReport&);  // of what the tokens do not say of the text

// Error: see list_text_files(), load_tokenizer(), load_chat_format(), TokenStoreWriter; an empty corpus; a split that
// stays empty.
PrepareReport prepare_corpus(const PrepareOptions&, const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace ring
