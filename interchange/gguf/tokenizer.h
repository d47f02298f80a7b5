#pragma once
// Tokenizers and chat templates in the form that llama.cpp reads from a GGUF file.

#include <string>
#include <vector>

#include "interchange/gguf/writer.h"
#include "text/chat/format.h"
#include "text/tokenizer.h"

namespace ring {

// Returns the keys tokenizer.* for a model with vocab_size tokens; tokens that the tokenizer lacks are marked as
// unused. A byte-level tokenizer.json becomes "gpt2" with the name of its pre_tokenizer, `bytes` becomes "gpt2" without
// merges, SentencePiece BPE becomes "llama". Appends small differences to `notes`. Throws Error if llama.cpp does not
// support the tokenizer.
GgufKeys gguf_tokenizer(const Tokenizer&, const chat::Format&, std::int64_t vocab_size,
                        std::vector<std::string>& notes);

// Returns the name in llama.cpp of a tokenizer.json's pre-tokenization: "gpt-2", "llama-bpe", ... json: contents of the
// file, valid for this program. Throws Error, which names the unsupported part, if llama.cpp has no name for it.
std::string gguf_pre_tokenizer(const std::string& json);

}  // namespace ring
