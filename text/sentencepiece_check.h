#pragma once
// What the SentencePiece library takes on trust of a model and ends the process over where it is not so: pieces without
// text, and tables of replacements (precompiled_charsmap) that lead out of themselves. A plain model has no hash, so a
// damaged one is found here or by the library's own checks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/sentencepiece_normalizer.h"

namespace ring {

// `model`: the bytes of a SentencePiece .model file. Error names `name`.
void check_sentencepiece_model(std::string_view model, const std::string& name);

// Returns what a checked model does to a text before it cuts the text into pieces.
SentencePieceNormalization read_normalization(std::string_view model, const std::string& name);

// What a checked model says, for programs that have no SentencePiece library.
struct SentencePieces {
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;
  bool bpe = false;       // the best pair of neighbours is merged; else another algorithm, such as unigram
  bool replaces = false;  // characters, before anything else
};
SentencePieces read_sentencepieces(std::string_view model, const std::string& name);

}  // namespace ring
