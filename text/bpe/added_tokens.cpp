#include "text/bpe/added_tokens.h"

#include <algorithm>

#include "text/bpe/unicode.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

std::size_t pair_of(char left, char right) {
  return std::size_t{static_cast<unsigned char>(left)} << 8 | static_cast<unsigned char>(right);
}
std::uint64_t edge(std::uint32_t node, char byte) {
  return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

bool has_trait(std::string_view text, std::size_t at, std::size_t bytes, unicode::Trait trait) {
  return bytes > 0 && (unicode::Traits::all().of(utf8::decode(text.substr(at), bytes)) & trait) != 0;
}
// Returns the length in bytes of the character with this trait that starts at `at`; 0 if there is none.
std::size_t starting(std::string_view text, std::size_t at, unicode::Trait trait) {
  const std::size_t n = at < text.size() ? utf8::valid_length(text.substr(at)) : 0;
  return has_trait(text, at, n, trait) ? n : 0;
}
// Returns the length in bytes of the character with this trait that ends at `at`; 0 if there is none.
std::size_t ending(std::string_view text, std::size_t at, unicode::Trait trait) {
  std::size_t begin = at;
  while (begin > 0 && at - begin < 4 && utf8::is_continuation(text[begin - 1])) --begin;
  if (begin == 0) return 0;
  const std::size_t n = utf8::valid_length(text.substr(--begin));
  return begin + n == at && has_trait(text, begin, n, trait) ? n : 0;
}

}  // namespace

std::size_t blanks_from(std::string_view text, std::size_t at) {
  std::size_t end = at;
  for (std::size_t n; (n = starting(text, end, unicode::kSpace)) > 0;) end += n;
  return end - at;
}

std::size_t blanks_up_to(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  for (std::size_t n; (n = ending(text, begin, unicode::kSpace)) > 0;) begin -= n;
  return at - begin;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::uint32_t nodes = 1;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& t = tokens_[i];
    starts_[static_cast<unsigned char>(t.content.front())] = true;
    ends_with_[static_cast<unsigned char>(t.content.back())] = true;
    looks_around_ = looks_around_ || t.single_word || t.lstrip || t.rstrip;
    strips_left_ = strips_left_ || t.lstrip;
    if (t.rstrip) takes_blanks_behind_.insert(t.id);
    std::uint32_t node = 0;
    for (std::size_t b = 0; b < t.content.size(); ++b) {
      const auto [step, added] = next_.try_emplace(edge(node, t.content[b]), nodes);
      nodes += added;
      node = step->second;
      if (b > 0) adjacent_[pair_of(t.content[b - 1], t.content[b])] = true;
    }
    ends_[node] = i;
  }
}

const AddedToken* AddedTokens::longest_token_at(std::string_view text, std::size_t at) const {
  const AddedToken* found = nullptr;
  for (std::uint32_t node = 0; at < text.size(); ++at) {
    const auto step = next_.find(edge(node, text[at]));
    if (step == next_.end()) break;
    node = step->second;
    if (const auto end = ends_.find(node); end != ends_.end()) found = &tokens_[end->second];
  }
  return found;
}

bool AddedTokens::takes_blanks_in_front(std::string_view text) const {
  if (!strips_left_) return false;
  const AddedToken* t = longest_token_at(text, blanks_from(text, 0));
  return t && t->lstrip &&
         !(t->single_word && starting(text, blanks_from(text, 0) + t->content.size(), unicode::kWord));
}

void AddedTokens::split_text(std::string_view text, const Take& take) const {
  std::size_t done = 0;  // end of the text passed to `take`
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* t = starts_[static_cast<unsigned char>(text[at])] ? longest_token_at(text, at) : nullptr;
    if (!t) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + t->content.size();
    at = end;
    if (t->single_word && (ending(text, begin, unicode::kWord) || starting(text, end, unicode::kWord))) continue;
    if (t->lstrip) begin -= blanks_up_to(text.substr(done), begin - done);
    if (t->rstrip) end += blanks_from(text, end);
    begin = std::max(begin, done);
    if (done < begin) take(done, begin, -1);
    take(begin, end, t->id);
    done = end;
  }
  if (done < text.size()) take(done, text.size(), -1);
}

bool AddedTokens::may_cross(char left, char right) const {
  return looks_around_ || ends_with_[static_cast<unsigned char>(left)] || adjacent_[pair_of(left, right)];
}

}  // namespace ring::bpe
