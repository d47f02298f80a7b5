#pragma once
// Regular expressions as Hugging Face's tokenizers has them (Oniguruma's), by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ring::bpe {

struct Match {
  std::size_t begin = 0, end = 0;  // may be empty
};

// Immutable, shared between threads. What PCRE2 reads as something else is refused.
class Regex {
 public:
  explicit Regex(const std::string& pattern);  // Error: it is none, or says what cannot be said here; or no PCRE2
  std::vector<Match> find(std::string_view text) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace ring::bpe
