#pragma once
// Tokenizers and chat templates as llama.cpp reads them out of a GGUF file.

#include <string>
#include <vector>

#include "interchange/gguf/writer.h"
#include "text/chat/format.h"
#include "text/tokenizer.h"

namespace ring {

// The keys tokenizer.*, for a model of so many tokens: those that the tokenizer lacks are unused. A byte-level
// tokenizer.json becomes "gpt2" with the name of its pre_tokenizer, `bytes` the same without merges, SentencePiece's
// BPE "llama". Error: it is of another kind, or does what llama.cpp does not; notes: what differs a little.
GgufKeys gguf_tokenizer(const Tokenizer&, const chat::Format&, std::int64_t vocab_size,
                        std::vector<std::string>& notes);

// The name that llama.cpp has for how a tokenizer.json divides text: "gpt-2", "llama-bpe", ... Error names what it has
// no name for. `json`: the file, which this program reads.
std::string gguf_pre_tokenizer(const std::string& json);

}  // namespace ring
