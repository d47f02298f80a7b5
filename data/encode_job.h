#pragma once
// Work items that the threads of a preparation exchange: pieces of documents as text, then as tokens.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "data/token_store.h"
#include "text/bpe/added_tokens.h"
#include "text/tokenizer.h"

namespace ring {

// Consecutive text or tokens of one document.
struct EncodePiece {
  std::size_t begin = 0, end = 0;  // range in EncodeJob::text, or in EncodeResult::tokens
  std::size_t file = 0;
  std::uint64_t text_bytes = 0;
  Split split = Split::train;
  bool first = false, last = false;  // true for the first and the last piece of the document
  bool counts = true;                // true if the piece's tokens count as targets
};

struct EncodeJob {
  std::string text;
  std::vector<EncodePiece> pieces;
};

struct EncodeResult {
  std::vector<std::int32_t> tokens;
  std::vector<EncodePiece> pieces;
  EncodeReport report;
  std::size_t first_bad_file = std::numeric_limits<std::size_t>::max();
  std::uint64_t text_bytes = 0;
};

enum class DocumentShape : std::uint8_t {
  // Encoded with the tokens that the tokenizer puts around a text, unless the text already has them; all tokens count.
  text,
  pair,         // same as `text`, but the tokens at the beginning do not count as targets
  conversation  // encoded exactly as the chat template wrote it; no tokens are added
};

// Encodes documents as tokens. Thread-safe; all threads share one vocabulary.
class DocumentFrame {
 public:
  DocumentFrame(const Tokenizer&, DocumentShape);
  EncodeResult encode(const EncodeJob&, Encoder&) const;

 private:
  void encode(std::string_view text, bool first, Encoder&, std::vector<std::int32_t>& out) const;
  void encode_piece(std::string_view text, const EncodePiece&, Encoder&, EncodeResult& out) const;
  std::vector<std::int32_t> before_, after_;
  bool count_before_ = true;
  std::int32_t begin_ = -1;  // the token in named_ that begins a text; -1 if there is none
  bpe::AddedTokens named_;   // tokens that a chat template writes by name
};

}  // namespace ring
