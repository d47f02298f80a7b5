#pragma once
// Trains a SentencePiece vocabulary.

#include <cstdint>
#include <memory>
#include <string>

#include "text/text_source.h"

namespace ring {

class Tokenizer;

struct SentencePieceOptions {
  std::string kind = "bpe";     // or "unigram"
  std::int64_t vocab_size = 0;  // all tokens: unknown, end-of-text, 256 bytes, then characters and pieces
  // Fraction of the text whose characters get their own token; the rest is encoded as bytes.
  double character_coverage = 0.9995;
  std::string text = "the text";  // name of the text in errors
};

// Trains a vocabulary. The same text and options give the same vocabulary on every machine. Runs in a child process,
// because the library aborts the process on some errors; call before any threads are started. Throws Error, with the
// bound and the remedy or the library's message, if the text allows no vocabulary of that size.
std::shared_ptr<const Tokenizer> train_sentencepiece(const TextSource& source, const SentencePieceOptions& options);

}  // namespace ring
