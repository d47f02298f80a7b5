#pragma once
// Tokens that are cut out of a text before anything else sees it: the section `added_tokens`.

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
  bool special = false;                 // stands for no text
  bool single_word = false;             // not within a word
  bool lstrip = false, rstrip = false;  // takes the blank space before or behind it along
  bool normalized = false;              // looked for after normalization
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // with the contents to look for; none is empty

  // Calls take(begin, end, id) for parts that cover the text in order, with -1 for what is no added token. Where
  // several begin, the longest one counts.
  using Take = std::function<void(std::size_t begin, std::size_t end, std::int32_t id)>;
  void divide(std::string_view text, const Take& take) const;
  bool takes_blanks_behind(std::int32_t id) const { return takes_blanks_behind_.contains(id); }  // rstrip
  // Returns true if the text, after leading blank space, begins with a token that has lstrip.
  bool takes_blanks_in_front(std::string_view text) const;
  // Whether a cut between these bytes of a text may change what is found, or what lies behind something found: one has
  // them next to each other, or ends with the left one, or looks at what is around it.
  bool may_cross(char left, char right) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{}, ends_with_{};           // bytes that one begins, or ends, with
  std::unordered_map<std::uint64_t, std::uint32_t> next_;  // of a node and a byte; node 0 is the root
  std::unordered_map<std::uint32_t, std::size_t> ends_;    // at a node: the token
  std::vector<bool> adjacent_ = std::vector<bool>(65536);
  bool looks_around_ = false, strips_left_ = false;
  std::set<std::int32_t> takes_blanks_behind_;
};

// Returns the bytes of blank space that `text` has from `at` on.
std::size_t blanks_from(std::string_view text, std::size_t at);
// Returns the bytes of blank space that `text` has in front of `at`.
std::size_t blanks_up_to(std::string_view text, std::size_t at);

}  // namespace ring::bpe
