#pragma once
// Trains a byte-level BPE vocabulary, as a tokenizer.json.

#include <cstdint>
#include <memory>

#include "text/bpe/patterns.h"
#include "text/text_source.h"
#include "text/tokenizer.h"

namespace ring::bpe {

struct TrainOptions {
  std::int64_t vocab_size = 0;      // all tokens: end-of-text, 256 bytes, then merges
  Pattern pattern = Pattern::gpt2;  // qwen2 brings NFC along, as its models do
};

// Merges the pair of neighbours that is the most frequent within the words of the pattern, of equal ones that of the
// lowest numbers, as often as there are tokens left; the same text and options give the same file. Fewer tokens than
// asked for where no pair occurs twice. Memory: what the different words take, some hundred bytes each.
std::shared_ptr<const Tokenizer> train_byte_bpe(const TextSource&, const TrainOptions&);

}  // namespace ring::bpe
