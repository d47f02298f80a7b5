#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring {
namespace {

class CharsTokenizer final : public Tokenizer {
 public:
  CharsTokenizer(std::vector<char32_t> characters, bool end_of_text)
      : characters_(std::move(characters)), has_end_(end_of_text) {
    ascii_.fill(-1);
    for (std::size_t i = 0; i < characters_.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      if (characters_[i] < 128) ascii_[characters_[i]] = id;
      ids_.emplace(characters_[i], id);
    }
  }

  std::string_view kind() const override { return "chars"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(characters_.size()) + has_end_; }
  std::optional<std::int32_t> end_of_text() const override {
    if (!has_end_) return std::nullopt;
    return static_cast<std::int32_t>(characters_.size());
  }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<CharEncoder>(*this); }

  std::string bytes_of(std::int32_t id) const override {
    check_id(id);
    std::string out;
    if (id != end_of_text()) utf8::append(out, characters_[static_cast<std::size_t>(id)]);
    return out;
  }
  std::string piece(std::int32_t id) const override { return id == end_of_text() ? "<|endoftext|>" : bytes_of(id); }

  std::size_t safe_prefix(std::string_view text) const override {
    for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
      if (utf8::is_incomplete(text.substr(text.size() - back))) return text.size() - back;
    }
    return text.size();
  }

  std::string payload() const override {
    std::string out = has_end_ ? "end_of_text 1\n" : "end_of_text 0\n";
    for (char32_t c : characters_) utf8::append(out, c);
    return out;
  }

 private:
  class CharEncoder final : public Encoder {
   public:
    explicit CharEncoder(const CharsTokenizer& t) : t_(t) {}
    void encode(std::string_view text, std::vector<std::int32_t>& out) override {
      out.reserve(out.size() + text.size());
      while (!text.empty()) {
        const auto byte = static_cast<unsigned char>(text[0]);
        if (byte < 128 && t_.ascii_[byte] >= 0) {
          out.push_back(t_.ascii_[byte]);
          text.remove_prefix(1);
          continue;
        }
        const std::size_t n = utf8::valid_length(text);
        if (n == 0) ++report_.invalid_bytes;
        put(n ? utf8::decode(text, n) : utf8::kReplacement, n == 0, out);
        text.remove_prefix(n ? n : 1);
      }
    }

   private:
    // A character outside the vocabulary is replaced by U+FFFD if the vocabulary has it, else dropped.
    void put(char32_t c, bool counted, std::vector<std::int32_t>& out) {
      auto found = t_.ids_.find(c);
      if (found == t_.ids_.end()) {
        if (!counted) ++report_.unknown;
        found = t_.ids_.find(utf8::kReplacement);
      }
      if (found != t_.ids_.end()) out.push_back(found->second);
    }
    const CharsTokenizer& t_;
  };

  std::vector<char32_t> characters_;  // sorted
  bool has_end_;
  std::array<std::int32_t, 128> ascii_{};
  std::unordered_map<char32_t, std::int32_t> ids_;
};

}  // namespace

std::shared_ptr<const Tokenizer> chars_tokenizer(std::string_view characters, bool end_of_text) {
  std::vector<char32_t> list;
  for (std::string_view rest = characters; !rest.empty();) {
    const std::size_t n = utf8::valid_length(rest);
    if (n == 0) fail("the characters of a chars tokenizer are not UTF-8 at byte ", characters.size() - rest.size());
    list.push_back(utf8::decode(rest, n));
    rest.remove_prefix(n);
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  if (list.empty()) fail("a chars tokenizer needs at least one character; the text it was built from is empty");
  return std::make_shared<CharsTokenizer>(std::move(list), end_of_text);
}

}  // namespace ring
