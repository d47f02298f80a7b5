#pragma once
// Trains a byte-level BPE vocabulary and returns it as a tokenizer.json.

#include <cstdint>
#include <memory>

#include "text/bpe/patterns.h"
#include "text/text_source.h"
#include "text/tokenizer.h"

namespace ring::bpe {

struct TrainOptions {
  std::int64_t vocab_size = 0;      // number of all tokens: end-of-text, 256 bytes, then merges
  Pattern pattern = Pattern::gpt2;  // qwen2 also adds NFC normalization, as in the Qwen2 models
};

// Repeatedly merges the pair of adjacent tokens that is most frequent within the pattern's words (of equally frequent
// pairs, the one with the lowest ids) until vocab_size is reached; the same text and options give the same file.
// Returns fewer tokens if no remaining pair occurs at least twice. Uses some hundred bytes of memory per distinct word.
std::shared_ptr<const Tokenizer> train_byte_bpe(const TextSource&, const TrainOptions&);

}  // namespace ring::bpe
