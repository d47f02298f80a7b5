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
  double character_coverage =
      0.9995;  // share of the text whose characters get a token of their own; the rest is spelled in bytes
  std::string text = "the text";  // its name in errors
};

// The same text and options give the same vocabulary on every machine. Runs in a process of its own, because the
// library ends the process on some of its errors; call it before any threads are started. Throws Error if the text
// allows no vocabulary of that size, with the bound and the remedy, or with what the library said.
std::shared_ptr<const Tokenizer> train_sentencepiece(const TextSource& source, const SentencePieceOptions& options);

}  // namespace ring
