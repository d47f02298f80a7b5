#pragma once
// Trains a SentencePiece vocabulary.

#include <cstdint>
#include <memory>
#include <string>

#include "text/text_source.h"

namespace ring {

class Tokenizer;

struct SentencePieceOptions {
  std::string kind = "bpe";     // "bpe" or "unigram"
  std::int64_t vocab_size = 0;  // number of all tokens: unknown, end-of-text, 256 bytes, then characters and pieces
  // Fraction of the text whose characters get their own tokens; the remaining text is encoded as bytes.
  double character_coverage = 0.9995;
  std::string text = "the text";  // name of the text in error messages
};

// Trains a vocabulary. The same text and options give the same vocabulary on every machine. Runs in a child process,
// because the library aborts the process on some errors; call before any threads are started. Throws Error, with the
// limit and the remedy or the library's message, if the text does not allow a vocabulary of this size.
std::shared_ptr<const Tokenizer> train_sentencepiece(const TextSource& source, const SentencePieceOptions& options);

}  // namespace ring
