#pragma once
// Regular expressions in the syntax of Hugging Face's tokenizers (Oniguruma), executed by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ring::bpe {

struct Match {
  std::size_t begin = 0, end = 0;  // the match may be empty
};

// A regular expression. Immutable and thread-safe. Patterns that PCRE2 would interpret differently are rejected.
class Regex {
 public:
  // Throws Error if the pattern is invalid or unsupported, or if this build lacks PCRE2.
  explicit Regex(const std::string& pattern);
  // Returns all matches in order, without overlaps.
  std::vector<Match> find(std::string_view text) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace ring::bpe
