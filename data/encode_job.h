#pragma once
// What the threads of a preparation hand each other: stretches of documents as text, then as tokens.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {

// A stretch of one document.
struct EncodePiece {
  std::size_t begin = 0, end = 0;  // of the job's text, then of the result's tokens
  std::size_t file = 0;
  std::uint64_t text_bytes = 0;
  Split split = Split::train;
  bool first = false, last = false;  // of its document
  bool counts = true;                // as targets
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
  text,         // between what the tokenizer puts around a text, unless the text has it; everything counts
  pair,         // the same, but what stands in front does not count
  conversation  // as its template wrote it, which names the tokens around texts itself
};

// How documents become tokens. For one vocabulary, any thread.
class DocumentFrame {
 public:
  DocumentFrame(const Tokenizer&, DocumentShape);
  EncodeResult encode(const EncodeJob&, Encoder&) const;

 private:
  void encode(std::string_view text, bool first, Encoder&, std::vector<std::int32_t>& out) const;
  void encode_piece(std::string_view text, const EncodePiece&, Encoder&, EncodeResult& out) const;
  std::vector<std::int32_t> before_, after_;
  bool count_before_ = true;
  std::vector<std::pair<std::string, std::int32_t>> named_;  // tokens that a template writes by their names
};

}  // namespace ring
