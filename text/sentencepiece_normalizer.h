#pragma once
// Normalization of a SentencePiece model (NormalizerSpec, and normalizer.cc of google/sentencepiece), which runs before
// segmentation: a table replaces characters, and spaces are removed. The library normalizes only whole texts; with this
// code, a text that is encoded in parts gives the same tokens as the whole text.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581, which the library uses for spaces

// The normalizer_spec of a model.
struct SentencePieceNormalization {
  std::string replacements;       // precompiled_charsmap: maps prefixes to replacements; empty if there is none
  bool blank_in_front = true;     // add_dummy_prefix: a space is added before each text, as for Llama 2 and Mistral
  bool removes_blanks = true;     // remove_extra_whitespaces: removes spaces at both ends and repeated spaces
  std::vector<std::string> kept;  // user-defined pieces, in which nothing is replaced
};

class SentencePieceNormalizer {
 public:
  // The table must have passed check_sentencepiece_model().
  explicit SentencePieceNormalizer(SentencePieceNormalization);
  SentencePieceNormalizer(const SentencePieceNormalizer&) = delete;
  SentencePieceNormalizer& operator=(const SentencePieceNormalizer&) = delete;

  bool changes_text() const { return spec_.removes_blanks || !units_.empty(); }
  bool blank_in_front() const { return spec_.blank_in_front; }

  // Appends the normalized `text`, which must be valid UTF-8, to `out`. after_blank: true if `text` comes first or
  // after a space; is updated for the part after `text`. Does not remove a space at the end of the whole text.
  void append(std::string_view text, bool& after_blank, std::string& out) const;
  bool removes_blanks() const { return spec_.removes_blanks; }

 private:
  // A prefix of `length` bytes and its replacement.
  struct Replaced {
    std::size_t length;
    std::string_view by;
  };
  Replaced next(std::string_view text) const;

  SentencePieceNormalization spec_;
  std::vector<std::uint32_t> units_;                     // double-array trie that encodes the table
  std::string_view texts_;                               // replacement texts; the trie's values are offsets in it
  std::array<std::vector<std::string_view>, 256> kept_;  // kept pieces by first byte, longest first
};

}  // namespace ring
