#pragma once
// Tokenizers by name: of a file, or of a corpus.

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace ring {

// "bytes", or the path of a tokenizer file (.rmt), of a tokenizer.json (and with it the tokenizer_config.json beside
// it), of a SentencePiece model, or of a corpus that holds one.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec);
// The one that has this hash; empty: any. Error, besides the above: it is another one than `owner` ("checkpoint
// runs/a/checkpoints/step-100") was made with.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const std::string& hash,
                                                const std::string& owner);

}  // namespace ring
