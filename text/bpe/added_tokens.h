#pragma once
// Tokens that are found in a text before any other processing: the section `added_tokens`.

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ring::bpe {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;                 // true if the token decodes to no text
  bool single_word = false;             // true if it matches only whole words
  bool lstrip = false, rstrip = false;  // true if it also consumes the white space before (lstrip) or after it (rstrip)
  bool normalized = false;              // true if it is matched after normalization
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // no content may be empty

  // Calls take(begin, end, id) for consecutive parts that cover the text; id is -1 for text that is not an added token.
  // If several tokens begin at the same position, the longest one wins.
  using Take = std::function<void(std::size_t begin, std::size_t end, std::int32_t id)>;
  void split_text(std::string_view text, const Take& take) const;
  bool takes_blanks_behind(std::int32_t id) const { return takes_blanks_behind_.contains(id); }  // if it has rstrip
  // Returns true if the text, after leading white space, begins with a token that has lstrip.
  bool takes_blanks_in_front(std::string_view text) const;
  // Returns true if splitting a text between bytes `left` and `right` may change which tokens are found, or the text
  // after a token: if a token contains the two bytes in succession or ends with `left`, or if a token depends on its
  // surroundings.
  bool may_cross(char left, char right) const;

 private:
  const AddedToken* longest_token_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{}, ends_with_{};  // bytes with which a token begins, and with which a token ends
  // Trie: the next node for a node and a byte; node 0 is the root.
  std::unordered_map<std::uint64_t, std::uint32_t> next_;
  std::unordered_map<std::uint32_t, std::size_t> ends_;  // index of the token that ends at a node
  std::vector<bool> adjacent_ = std::vector<bool>(65536);
  bool looks_around_ = false, strips_left_ = false;
  std::set<std::int32_t> takes_blanks_behind_;
};

// Returns the number of bytes of white space in `text` from `at` on.
std::size_t blanks_from(std::string_view text, std::size_t at);
// Returns the number of bytes of white space in `text` directly before `at`.
std::size_t blanks_up_to(std::string_view text, std::size_t at);

}  // namespace ring::bpe
