// Implements the Tokenizer interface for tokenizer.json files.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "text/bpe/description.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace ring {
namespace {

using bpe::SliceFn;
using bpe::Start;
using bpe::TextSlice;

// Beginnings of a payload's first lines; a token id or "none" follows each. The line with kBeginLine exists only if
// there is a begin-of-text token. The tokenizer.json follows these lines.
constexpr std::string_view kEndLine = "end_of_text ", kBeginLine = "begin_of_text ";

// End-of-text tokens of published models, for files that name none.
constexpr std::array<std::string_view, 7> kEnds = {
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOT>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<|im_end|>"};

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Returns the begin and end of each byte's character; a byte of invalid UTF-8 is treated as a character.
bpe::Origins origins_of(std::string_view text) {
  bpe::Origins origins;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = utf8::valid_length(text.substr(at)), n = valid ? valid : 1;
    origins.insert(origins.end(), n, {at, at + n});
    at += n;
  }
  return origins;
}

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string file, const std::string& name)
      : file_(std::move(file)), d_(bpe::read_description(file_, name)) {}

  std::string_view kind() const override { return "tokenizer.json"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(d_.texts.size()); }
  std::optional<std::int32_t> end_of_text() const override { return end_; }
  std::optional<std::int32_t> begin_of_text() const override { return begin_; }
  std::vector<std::int32_t> before_text() const override { return d_.before; }
  std::vector<std::int32_t> after_text() const override { return d_.after; }
  std::unique_ptr<Encoder> encoder() const override;

  std::string bytes_of(std::int32_t id) const override {
    check_id(id);
    return d_.texts[static_cast<std::size_t>(id)];
  }
  std::string piece(std::int32_t id) const override {
    const std::string text = bytes_of(id);
    if (text.empty()) return d_.pieces[static_cast<std::size_t>(id)];
    if (utf8::valid_prefix_length(text) == text.size()) return text;
    std::string shown;
    for (const char c : text) shown += hex_of(c);
    return shown;
  }
  std::size_t safe_prefix(std::string_view text) const override {
    for (std::size_t cut = text.size(); cut-- > 1;)
      if (may_cut(text, cut) && !d_.added.may_cross(text[cut - 1], text[cut]) &&
          !d_.added_normalized.may_cross(text[cut - 1], text[cut]))
        return cut;
    return 0;
  }
  std::vector<PlacedToken> encode_placed(std::string_view text) const override;

  std::string payload() const override {
    return end_line() + (begin_ ? str(kBeginLine, *begin_, "\n") : std::string()) + file_;
  }
  std::string hashed_payload() const override { return end_line() + file_; }
  std::string plain_file() const override { return file_; }

  // Calls added(stretch, id) for added tokens and word(stretch) for words; together they cover the text, in order.
  template <class Added>
  void split_text(const TextSlice& all, const SliceFn& word, const Added& added) const {
    const auto words = [&](const TextSlice& s) {
      d_.added_normalized.split_text(s.text, [&](std::size_t begin, std::size_t end, std::int32_t id) {
        const TextSlice part = s.part(begin, end);
        if (id >= 0) return added(part, id);
        if (d_.pre_tokenizer) return d_.pre_tokenizer->split(part, word);
        word(part);
      });
    };
    d_.added.split_text(all.text, [&](std::size_t begin, std::size_t end, std::int32_t id) {
      const TextSlice part = all.part(begin, end);
      if (id >= 0) return added(part, id);
      if (!d_.normalizer || d_.normalizer->keeps(part)) return words(part);
      bpe::Passage changed(part);
      d_.normalizer->apply(changed);
      words(changed.all());
    });
  }
  const bpe::Model& model() const { return d_.model; }
  bool takes_blanks_behind(std::int32_t id) const {
    return d_.added.takes_blanks_behind(id) || d_.added_normalized.takes_blanks_behind(id);
  }

  bool takes_blanks_in_front(std::string_view text) const {
    return d_.added.takes_blanks_in_front(text) || d_.added_normalized.takes_blanks_in_front(text);
  }

  void end_with(std::int32_t id) { end_ = id; }
  void begin_with(std::optional<std::int32_t> id) { begin_ = id; }
  std::optional<std::int32_t> special(std::string_view content) const {
    for (std::size_t i = 0; i < d_.pieces.size(); ++i)
      if (d_.special[i] && d_.pieces[i] == content) return static_cast<std::int32_t>(i);
    return std::nullopt;
  }
  bool blank_in_front() const override { return d_.blank_in_front; }

 private:
  std::string end_line() const { return str(kEndLine, end_ ? std::to_string(*end_) : std::string("none"), "\n"); }
  static std::string hex_of(char c) {
    constexpr std::string_view digits = "0123456789abcdef";
    const auto b = static_cast<unsigned char>(c);
    return {'<', '0', 'x', digits[b >> 4], digits[b & 15], '>'};
  }

  // Returns true if a text may be split at `cut`. In every byte-level pattern, white space after a letter or digit
  // begins a word, and so does text after a single line end. In other patterns, a space begins a word.
  bool may_cut(std::string_view text, std::size_t cut) const {
    const char left = text[cut - 1], right = text[cut];
    if (!d_.model.byte_level) return d_.blanks_begin_words && right == ' ' && left != ' ';
    if (is_blank(right)) return ends_word(text.substr(0, cut));
    const bool ascii = static_cast<unsigned char>(right) < 0x80;
    return left == '\n' && cut > 1 && ends_word(text.substr(0, cut - 1)) && ascii;
  }
  static bool ends_word(std::string_view text) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && utf8::is_continuation(text[begin])) --begin;
    const std::string_view last = text.substr(begin);
    return utf8::valid_length(last) == last.size() &&
           (unicode::Traits::all().of(utf8::decode(last, last.size())) & (unicode::kLetter | unicode::kNumber)) != 0;
  }

  void trim(std::string_view text, PlacedToken& t, bool first) const;

  std::string file_;
  bpe::Description d_;
  std::optional<std::int32_t> end_, begin_;
};

class JsonEncoder final : public Encoder {
 public:
  explicit JsonEncoder(const JsonTokenizer& t) : t_(t), merger_(t.model()) {}
  void encode(std::string_view text, std::vector<std::int32_t>& out) override {
    takes_blanks_ = begins_section_ = false;
    run(text, Start::text, out);
  }
  std::size_t taken_by_next(std::string_view text, std::string_view next) const override {
    return t_.takes_blanks_in_front(next) ? bpe::blanks_up_to(text, text.size()) : 0;
  }
  void encode_continuation(std::string_view text, std::vector<std::int32_t>& out) override {
    if (takes_blanks_) text.remove_prefix(bpe::blanks_from(text, 0));
    if (!text.empty()) run(text, begins_section_ ? Start::section : Start::cut, out);
  }

 private:
  void run(std::string_view text, Start start, std::vector<std::int32_t>& out) {
    cache_.announce(text.size());
    count_invalid(text);
    t_.split_text(
        {text, {}, start},
        [&](const TextSlice& word) {
          takes_blanks_ = begins_section_ = false;
          encode_word(word.text, out);
        },
        [&](const TextSlice&, std::int32_t id) {
          takes_blanks_ = t_.takes_blanks_behind(id);
          begins_section_ = true;
          out.push_back(id);
        });
  }
  void count_invalid(std::string_view text) {
    for (std::size_t valid = utf8::valid_prefix_length(text); valid < text.size();
         valid = utf8::valid_prefix_length(text)) {
      ++report_.invalid_bytes;
      text.remove_prefix(valid + 1);
    }
  }
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) {
    if (cache_.find(word, out)) return;
    const std::size_t old = out.size();
    const std::int64_t unknown = report_.unknown;
    for (const bpe::Symbol& s : merger_.tokens(word, report_)) out.push_back(s.id);
    // A text with unknown characters is not cached, since they must be counted each time.
    if (report_.unknown == unknown) cache_.keep(word, std::span(out).subspan(old));
  }

  const JsonTokenizer& t_;
  bpe::Merger merger_;
  WordCache cache_;
  // True if the last token was an added token with rstrip, which includes the white space after it.
  bool takes_blanks_ = false;
  // True if the last token was an added token, so that the following text begins a section.
  bool begins_section_ = false;
};

std::unique_ptr<Encoder> JsonTokenizer::encoder() const { return std::make_unique<JsonEncoder>(*this); }

// Moves the ends of a token's position inward past white space, like the post_processor ByteLevel with trim_offsets.
void JsonTokenizer::trim(std::string_view text, PlacedToken& t, bool first) const {
  const std::string& spelled = d_.texts[static_cast<std::size_t>(t.id)];
  const auto next = [&](std::uint64_t at) {
    return at + std::max<std::size_t>(utf8::valid_length(text.substr(at)), 1);
  };
  std::size_t leading = std::min(spelled.find_first_not_of(' '), spelled.size());
  const std::size_t trailing = spelled.size() - (spelled.find_last_not_of(' ') + 1);
  if ((first || t.begin == 0) && d_.keeps_first_blank && leading == 1) leading = 0;
  for (std::size_t i = 0; i < leading && t.begin < t.end; ++i) t.begin = std::min(next(t.begin), t.end);
  for (std::size_t i = 0; i < trailing && t.end > t.begin; ++i) {
    do --t.end;
    while (t.end > t.begin && utf8::is_continuation(text[t.end]));
  }
}

std::vector<PlacedToken> JsonTokenizer::encode_placed(std::string_view text) const {
  const bpe::Origins origins = origins_of(text);
  bpe::Merger merger(d_.model);
  EncodeReport report;
  std::vector<PlacedToken> all;
  const auto put = [&](std::int32_t id, const TextSlice& s, std::size_t begin, std::size_t end) {
    all.push_back({id, s.origins[begin].begin, s.origins[end - 1].end});
    if (d_.trims_offsets) trim(text, all.back(), all.size() == 1);
  };
  const auto put_word = [&](const TextSlice& word) {
    std::size_t at = 0;
    for (const bpe::Symbol& s : merger.tokens(word.text, report)) {
      put(s.id, word, at, at + s.bytes);
      at += s.bytes;
    }
  };
  split_text({text, origins, Start::text}, put_word,
             [&](const TextSlice& s, std::int32_t id) { put(id, s, 0, s.text.size()); });
  return all;
}

}  // namespace

std::shared_ptr<const Tokenizer> json_tokenizer(std::string json, const std::string& name, const std::string& config) {
  const auto tokenizer = std::make_shared<JsonTokenizer>(std::move(json), name);
  const std::string beside = name.substr(0, name.rfind('/') + 1) + "tokenizer_config.json";
  const auto named = [&](const char* key) { return config.empty() ? "" : bpe::read_config_token(config, key, beside); };
  if (const std::string begin = named("bos_token"); !begin.empty()) tokenizer->begin_with(tokenizer->special(begin));
  const std::string said = named("eos_token");
  if (!said.empty()) {
    const auto id = tokenizer->special(said);
    if (!id) fail(beside, ": eos_token: ", name, " has no special token '", said, "'");
    tokenizer->end_with(*id);
    return tokenizer;
  }
  for (const std::string_view end : kEnds)
    if (const auto id = tokenizer->special(end); id && !tokenizer->end_of_text()) tokenizer->end_with(*id);
  return tokenizer;
}

namespace {

// Removes a line "WORD NUMBER" from the payload and returns the number; nullopt for "WORD none".
std::optional<std::int32_t> take_token(std::string_view& payload, std::string_view word, const std::string& name) {
  const std::size_t line = payload.find('\n');
  if (line == std::string_view::npos || !payload.starts_with(word))
    fail(name, " is damaged: expected a line '", word,
         "NUMBER' in front of its tokenizer.json; create it again from that");
  const std::string token(payload.substr(word.size(), line - word.size()));
  payload.remove_prefix(line + 1);
  if (token == "none") return std::nullopt;
  const bool number = !token.empty() && token.size() < 9 && token.find_first_not_of("0123456789") == std::string::npos;
  if (!number) fail(name, " is damaged: '", token.substr(0, 40), "' after '", word, "' is not a token id");
  return std::stoi(token);
}

}  // namespace

std::shared_ptr<const Tokenizer> json_tokenizer_of(std::string_view payload, const std::string& name) {
  const std::optional<std::int32_t> end = take_token(payload, kEndLine, name);
  std::optional<std::int32_t> begin;
  if (payload.starts_with(kBeginLine)) begin = take_token(payload, kBeginLine, name);
  const auto tokenizer = std::make_shared<JsonTokenizer>(std::string(payload), name);
  for (const auto& token : {begin, end})
    if (token && *token >= tokenizer->vocab_size())
      fail(name, " is damaged: it begins or ends texts with token ", *token, ", but has only ", tokenizer->vocab_size(),
           " tokens");
  if (end) tokenizer->end_with(*end);
  tokenizer->begin_with(begin);
  return tokenizer;
}

}  // namespace ring
