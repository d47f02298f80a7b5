#pragma once
// Makes a corpus from text files: one thread reads and splits, `threads` threads encode, and the caller's thread writes
// in order. Memory is bounded by a fixed number of pieces in flight; the result does not depend on the number of
// threads. Data sets of Megatron-LM (data/megatron.h) are copied instead.

#include <functional>

#include "data/preparation.h"

namespace ring {

void log_warnings(const PrepareReport&);  // logs warnings about text that the tokens cannot represent

// Writes the corpus. Throws the errors of list_text_files(), load_tokenizer(), load_chat_format() and TokenStoreWriter,
// and Error if the corpus or a requested split would be empty.
PrepareReport prepare_corpus(const PrepareOptions&, const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace ring
