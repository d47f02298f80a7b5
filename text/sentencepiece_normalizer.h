#pragma once
// The normalization of a SentencePiece model, before a text is cut into pieces (NormalizerSpec, and normalizer.cc of
// google/sentencepiece): characters are replaced by a table, and blanks are removed. The library normalizes whole texts
// only; done here, a text encoded in parts gives the same tokens.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

// The normalizer_spec of a model.
struct SentencePieceNormalization {
  std::string replacements;       // precompiled_charsmap: a table of prefixes and what replaces them; empty: none
  bool blank_in_front = true;     // add_dummy_prefix: a text begins with a blank, as for Llama 2 and Mistral
  bool removes_blanks = true;     // remove_extra_whitespaces: at both ends, and all but one of each run
  std::vector<std::string> kept;  // user-defined pieces, in which nothing is replaced
};

class SentencePieceNormalizer {
 public:
  // Requires a table that check_sentencepiece_model() has accepted.
  explicit SentencePieceNormalizer(SentencePieceNormalization);
  SentencePieceNormalizer(const SentencePieceNormalizer&) = delete;
  SentencePieceNormalizer& operator=(const SentencePieceNormalizer&) = delete;

  bool changes_text() const { return spec_.removes_blanks || !units_.empty(); }
  bool blank_in_front() const { return spec_.blank_in_front; }

  // Appends the normalized `text`, valid UTF-8, to `out`. after_blank: in, whether `text` is first or follows a blank;
  // out, the same for the next part. Keeps the blank at the end of a whole text.
  void append(std::string_view text, bool& after_blank, std::string& out) const;
  bool removes_blanks() const { return spec_.removes_blanks; }

 private:
  // A prefix of a text, in bytes, and what it becomes.
  struct Replaced {
    std::size_t length;
    std::string_view by;
  };
  Replaced next(std::string_view text) const;

  SentencePieceNormalization spec_;
  std::vector<std::uint32_t> units_;                     // the double array trie of the table
  std::string_view texts_;                               // the texts that its values point into
  std::array<std::vector<std::string_view>, 256> kept_;  // by their first byte, the longest first
};

}  // namespace ring
