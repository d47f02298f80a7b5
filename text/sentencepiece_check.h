#pragma once
// Checks of a SentencePiece model that the library omits, although it aborts the process if they fail: pieces must have
// text, and the table of replacements (precompiled_charsmap) must not refer beyond its bounds. A plain model has no
// hash, so damage is detected here or by the library's own checks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/sentencepiece_normalizer.h"

namespace ring {

// Throws Error, which names `name`, if the model is unsafe to load. model: bytes of a SentencePiece .model file.
void check_sentencepiece_model(std::string_view model, const std::string& name);

// Returns the normalization of a checked model. Throws Error, which names `name`, if it cannot be read.
SentencePieceNormalization read_normalization(std::string_view model, const std::string& name);

// Contents of a checked model, for programs without the SentencePiece library.
struct SentencePieces {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;
  bool bpe = false;       // true for BPE, false for a different algorithm such as unigram
  bool replaces = false;  // true if normalization replaces characters
};
// Reads a checked model. Throws Error, which names `name`, if it cannot be read.
SentencePieces read_sentencepieces(std::string_view model, const std::string& name);

}  // namespace ring
