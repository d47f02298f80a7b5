// Reads a tokenizer.json as written by Hugging Face's tokenizers 0.20 to 0.23 and by older versions.
#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"
#include "text/bpe/description.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::size_t kMaxPut = 64;  // maximum bytes of inserted text
constexpr std::size_t kShown = 60;   // maximum bytes of a value in a message

// A value in the file with its path, e.g. "tokenizer.json: model.unk_token".
class Node {
 public:
  Node(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    std::string value = json_.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (value.size() > kShown) value = value.substr(0, kShown) + "...";
    fail(where_, ": ", value, ": ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void unknown(const Parts&... known) const {
    wrong("this program does not support it; supported: ", known...);
  }

  bool is_null() const { return json_.is_null(); }
  bool has(const char* key) const { return json_.is_object() && json_.contains(key) && !json_.at(key).is_null(); }
  Node at(const char* key) const {
    const std::string there = where_ + (where_.ends_with(' ') ? "" : ".") + key;
    if (!json_.is_object() || !json_.contains(key)) fail(there, " is missing");
    return {json_.at(key), there};
  }
  std::vector<Node> items() const {
    if (!json_.is_array()) wrong("expected a list");
    std::vector<Node> all;
    for (std::size_t i = 0; i < json_.size(); ++i) all.push_back({json_[i], str(where_, '[', i, ']')});
    return all;
  }
  const std::string& text() const {
    if (!json_.is_string()) wrong("expected a string");
    return json_.get_ref<const std::string&>();
  }
  std::string some_text() const {
    if (text().empty()) wrong("expected a non-empty string");
    return text();
  }
  // Returns text to be inserted. It must be short, since a few long texts would fill the memory.
  std::string short_text() const {
    if (text().size() > kMaxPut) wrong("expected at most ", kMaxPut, " bytes");
    return text();
  }
  bool flag() const {
    if (!json_.is_boolean()) wrong("expected true or false");
    return json_.get<bool>();
  }
  bool flag_or(const char* key, bool other) const { return has(key) ? at(key).flag() : other; }
  std::int32_t id() const {
    if (!json_.is_number_integer() || json_ < 0 || json_ >= kMaxTokens)
      wrong("expected an integer from 0 to ", kMaxTokens - 1);
    return json_.get<std::int32_t>();
  }

 private:
  const Json& json_;
  std::string where_;
};

std::string_view type_of(const Node& n) { return n.at("type").text(); }

Node string_pattern(const Node& pattern) {
  if (pattern.has("Regex")) pattern.wrong("expected {\"String\": ...}; a regular expression is not supported here");
  return pattern.at("String");
}

// --- normalizer ---

std::unique_ptr<Normalizer> read_normalizer(const Node& n) {
  const std::string_view type = type_of(n);
  if (type == "NFC") return unicode_form(unicode::Form::nfc);
  if (type == "NFD") return unicode_form(unicode::Form::nfd);
  if (type == "NFKC") return unicode_form(unicode::Form::nfkc);
  if (type == "NFKD") return unicode_form(unicode::Form::nfkd);
  if (type == "Lowercase") return lowercase();
  if (type == "Prepend") return prepend(n.at("prepend").short_text());
  if (type == "Replace") return replace(string_pattern(n.at("pattern")).some_text(), n.at("content").short_text());
  if (type != "Sequence") n.at("type").unknown("NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Sequence");
  std::vector<std::unique_ptr<Normalizer>> all;
  for (const Node& item : n.at("normalizers").items()) all.push_back(read_normalizer(item));
  return sequence(std::move(all));
}

// --- pre_tokenizer ---

Behavior read_behavior(const Node& n) {
  static const std::vector<std::pair<std::string_view, Behavior>> names = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  for (const auto& [name, behavior] : names)
    if (n.text() == name) return behavior;
  n.unknown("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

std::unique_ptr<PreTokenizer> read_split(const Node& n) {
  const Behavior behavior = read_behavior(n.at("behavior"));
  const bool invert = n.at("invert").flag();
  const Node pattern = n.at("pattern");
  if (pattern.has("String")) return split_at(pattern.at("String").some_text(), behavior, invert);
  const Node regex = pattern.at("Regex");
  const std::optional<Pattern> known = pattern_of(regex.text());
  // The known patterns cover the whole text: their matches are the words.
  if (known && (invert ? behavior == Behavior::removed : behavior == Behavior::isolated)) return split_by(*known);
  try {
    return split_at(Regex(regex.text()), behavior, invert);
  } catch (const Error& e) {
    regex.wrong(e.what());
  }
}

std::unique_ptr<PreTokenizer> read_metaspace(const Node& n) {
  const std::string scheme = n.has("prepend_scheme") ? n.at("prepend_scheme").text() : "always";
  if (scheme != "always" && scheme != "first" && scheme != "never")
    n.at("prepend_scheme").unknown("always, first, never");
  const bool never = scheme == "never" || !n.flag_or("add_prefix_space", true);
  if (utf8::count_characters(n.at("replacement").text()) != 1) n.at("replacement").wrong("expected one character");
  return metaspace(n.at("replacement").text(),
                   never               ? Prepending::never
                   : scheme == "first" ? Prepending::first
                                       : Prepending::always,
                   n.flag_or("split", true));
}

// Appends the steps of one pre_tokenizer to `all`, in order. byte_level: set to true by ByteLevel, after which no step
// may follow.
void read_pre_tokenizer(const Node& n, std::vector<std::unique_ptr<PreTokenizer>>& all, bool& byte_level) {
  if (byte_level) n.wrong("ByteLevel must be the last of the pre_tokenizers");
  const std::string_view type = type_of(n);
  if (type == "Sequence") {
    for (const Node& item : n.at("pretokenizers").items()) read_pre_tokenizer(item, all, byte_level);
  } else if (type == "ByteLevel") {
    byte_level = true;
    if (n.flag_or("add_prefix_space", true)) all.push_back(prefix_space());
    if (n.flag_or("use_regex", true)) all.push_back(split_by(Pattern::gpt2));
  } else if (type == "Split") {
    all.push_back(read_split(n));
  } else if (type == "Digits") {
    all.push_back(digits(n.flag_or("individual_digits", false)));
  } else if (type == "Metaspace") {
    all.push_back(read_metaspace(n));
  } else {
    n.at("type").unknown("ByteLevel, Split, Digits, Metaspace, Sequence");
  }
}

// --- decoder ---

struct Decoding {
  bool byte_level = false, byte_fallback = false, fused = false, drops_first = false;
  std::vector<std::pair<std::string, std::string>> replaced;
};

void read_strip(const Node& n, Decoding& d) {
  const bool one_in_front = n.at("content").text() == " " && n.at("start").json() == 1 && n.at("stop").json() == 0;
  if (!one_in_front || !d.fused) n.wrong("this program supports Strip only for one space at the start, after Fuse");
  d.drops_first = true;
}

void read_decoder(const Node& n, Decoding& d) {
  const std::string_view type = type_of(n);
  if (type == "Sequence") {
    for (const Node& item : n.at("decoders").items()) read_decoder(item, d);
  } else if (type == "ByteLevel") {
    d.byte_level = true;
  } else if (type == "ByteFallback") {
    d.byte_fallback = true;
  } else if (type == "Fuse") {
    d.fused = true;
  } else if (type == "Replace") {
    d.replaced.emplace_back(string_pattern(n.at("pattern")).some_text(), n.at("content").short_text());
  } else if (type == "Strip") {
    read_strip(n, d);
  } else if (type == "Metaspace") {
    const bool never = n.has("prepend_scheme") && n.at("prepend_scheme").text() == "never";
    d.drops_first = !never && n.flag_or("add_prefix_space", true);
    d.replaced.emplace_back(n.at("replacement").some_text(), " ");
  } else {
    n.at("type").unknown("ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence");
  }
}

// Returns the byte of a piece "<0x0A>", or -1 for any other piece.
int fallback_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  unsigned byte = 0;
  const char *begin = piece.data() + 3, *end = begin + 2;
  const auto [stop, error] = std::from_chars(begin, end, byte, 16);
  return error == std::errc() && stop == end ? static_cast<int>(byte) : -1;
}

// Returns the bytes of a piece in a byte-level vocabulary; nullopt if a character represents no byte.
std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const std::size_t n = utf8::valid_length(piece);
    const int byte = n ? byte_of(utf8::decode(piece, n)) : -1;
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    piece.remove_prefix(n);
  }
  return bytes;
}

std::string decoded(const std::string& piece, const Decoding& d) {
  if (d.byte_level) return bytes_of_piece(piece).value_or(piece);
  if (const int byte = d.byte_fallback ? fallback_byte(piece) : -1; byte >= 0)
    return std::string(1, static_cast<char>(byte));
  std::string text = piece;
  for (const auto& [from, to] : d.replaced)
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  if (text.size() > 64 * piece.size())
    fail("the decoder expands a token of ", piece.size(), " bytes to ", text.size(), ", expected at most ",
         64 * piece.size());
  return text;
}

// --- the whole tokenizer.json ---

class Reader {
 public:
  Reader(const Json& json, const std::string& file) : root_(json, file + ": ") {}

  Description read() {
    if (root_.has("normalizer")) d_.normalizer = read_normalizer(root_.at("normalizer"));
    read_pre_tokenizers();
    if (!root_.has("decoder")) root_.at("decoder").wrong("expected a decoder");
    read_decoder(root_.at("decoder"), decoding_);
    read_vocabulary(root_.at("model"));
    read_model(root_.at("model"));
    if (root_.has("added_tokens")) read_added();
    if (root_.has("post_processor")) read_post_processor(root_.at("post_processor"));
    d_.blank_in_front = decoding_.drops_first;
    return std::move(d_);
  }

 private:
  void read_pre_tokenizers() {
    std::vector<std::unique_ptr<PreTokenizer>> all;
    if (root_.has("pre_tokenizer")) read_pre_tokenizer(root_.at("pre_tokenizer"), all, d_.model.byte_level);
    if (all.size() == 1) d_.pre_tokenizer = std::move(all[0]);
    if (all.size() > 1) d_.pre_tokenizer = sequence(std::move(all));
  }

  void grow(std::int32_t id) {
    const auto size = static_cast<std::size_t>(id) + 1;
    if (d_.pieces.size() >= size) return;
    d_.pieces.resize(size), d_.texts.resize(size), d_.special.resize(size), used_.resize(size);
  }
  void add_piece(std::int32_t id, const std::string& piece) {
    grow(id);
    const auto i = static_cast<std::size_t>(id);
    d_.pieces[i] = piece;
    d_.texts[i] = decoded(piece, decoding_);
    used_[i] = true;
  }

  void read_vocabulary(const Node& model) {
    if (model.has("type") && model.at("type").text() != "BPE")
      model.at("type").unknown("BPE. A SentencePiece model is read from its tokenizer.model");
    const Node vocab = model.at("vocab");
    if (!vocab.json().is_object() || vocab.json().empty()) vocab.wrong("expected an object of tokens and their ids");
    size_ = static_cast<std::int64_t>(vocab.json().size());
    for (const auto& [piece, id] : vocab.json().items()) {
      const Node node(id, vocab.where() + "." + piece.substr(0, kShown));
      const std::int32_t number = node.id();
      if (number > 4 * size_ + 1024) node.wrong("this id is too large for a vocabulary of ", size_, " tokens");
      grow(number);
      if (used_[static_cast<std::size_t>(number)])
        node.wrong("'", shown(d_.pieces[static_cast<std::size_t>(number)]), "' has the same id");
      add_piece(number, piece);
    }
  }

  std::optional<std::int32_t> number_of(const std::string& piece) const {
    const Json& vocab = root_.json().at("model").at("vocab");
    const auto found = vocab.find(piece);
    return found == vocab.end() ? std::nullopt : std::optional(found->get<std::int32_t>());
  }

  void read_model(const Node& n) {
    Model& m = d_.model;
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (n.has(key) && !n.at(key).text().empty()) n.at(key).wrong("this program does not support it; expected null");
    if (n.has("dropout") && n.at("dropout").json() != 0)
      n.at("dropout").wrong("expected null: tokenization must be deterministic");
    m.ignore_merges = n.flag_or("ignore_merges", false);
    m.fuse_unknown = n.flag_or("fuse_unk", false);
    if (n.has("unk_token")) {
      const auto id = number_of(n.at("unk_token").text());
      if (!id) n.at("unk_token").wrong("it is not in the vocabulary");
      m.unknown = *id;
    }
    read_starts(n.flag_or("byte_fallback", false));
    read_merges(n.at("merges"));
  }

  // Reads the tokens of single bytes and characters, from which merging starts.
  void read_starts(bool byte_fallback) {
    Model& m = d_.model;
    m.bytes.fill(-1);
    d_.blanks_begin_words = !m.byte_level;
    for (std::size_t i = 0; i < d_.pieces.size(); ++i) {
      const std::string& piece = d_.pieces[i];
      if (piece.empty()) continue;
      const auto id = static_cast<std::int32_t>(i);
      if (!m.byte_level) read_character(piece, id, byte_fallback);
      const std::optional<std::string> bytes = m.byte_level ? bytes_of_piece(piece) : piece;
      if (!bytes) continue;
      if (m.byte_level && bytes->size() == 1) m.bytes[static_cast<unsigned char>((*bytes)[0])] = id;
      if (m.ignore_merges) m.whole.emplace(*bytes, id);
    }
    d_.blanks_begin_words = d_.blanks_begin_words && m.characters.contains(U'\u2581');
  }

  void read_character(const std::string& piece, std::int32_t id, bool byte_fallback) {
    const std::size_t n = utf8::valid_length(piece);
    if (n == piece.size()) d_.model.characters[utf8::decode(piece, n)] = id;
    if (const int byte = byte_fallback ? fallback_byte(piece) : -1; byte >= 0)
      d_.model.bytes[static_cast<std::size_t>(byte)] = id;
    constexpr std::string_view kBlank = "\u2581";
    const std::size_t text = piece.find_first_not_of(kBlank);  // no other character begins with bytes of kBlank
    for (std::size_t at = piece.find(kBlank); at != std::string::npos; at = piece.find(kBlank, at + 1))
      if (text < at) d_.blanks_begin_words = false;
  }

  void read_merges(const Node& merges) {
    const Json& list = merges.json();
    if (!list.is_array()) merges.wrong("expected a list");
    if (list.size() > std::size_t{4 * kMaxTokens}) fail(merges.where(), " has too many entries: ", list.size());
    d_.model.merges = PairTable(list.size());
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version")) continue;
      read_merge(Node(list[i], str(merges.where(), '[', i, ']')), rank++);
    }
  }

  static std::pair<std::string, std::string> sides_of(const Node& n) {
    const Json& j = n.json();
    if (j.is_array() && j.size() == 2 && j[0].is_string() && j[1].is_string()) return {j[0], j[1]};
    const std::string both = j.is_string() ? j.get<std::string>() : "";
    const std::size_t blank = both.find(' ');
    if (blank == std::string::npos || both.find(' ', blank + 1) != std::string::npos)
      n.wrong("expected \"a b\" or [\"a\", \"b\"]");
    return {both.substr(0, blank), both.substr(blank + 1)};
  }

  void read_merge(const Node& n, std::uint32_t rank) {
    const auto [left, right] = sides_of(n);
    const auto known = [&](const std::string& piece) {
      const auto id = number_of(piece);
      if (!id) n.wrong("'", shown(piece), "' is not in the vocabulary");
      return *id;
    };
    const std::int32_t a = known(left), b = known(right);
    d_.model.merges.set(a, b, {rank, known(left + right)});
  }

  void read_added() {
    std::vector<AddedToken> raw, normalized;
    std::set<std::string> seen;
    std::int64_t next = size_;  // id that Hugging Face's tokenizers give the next new token; they ignore the file's id
    for (const Node& n : root_.at("added_tokens").items()) {
      AddedToken t{.id = n.at("id").id(), .content = n.at("content").some_text()};
      if (!seen.insert(t.content).second) n.at("content").wrong("it occurs twice");
      const auto known = number_of(t.content);
      const std::int64_t number = known ? *known : next++;
      if (t.id != number) n.at("id").wrong("'", shown(t.content), "' should have the id ", number);
      t.special = n.flag_or("special", false);
      t.single_word = n.flag_or("single_word", false);
      t.lstrip = n.flag_or("lstrip", false);
      t.rstrip = n.flag_or("rstrip", false);
      t.normalized = n.flag_or("normalized", !t.special);
      add_piece(t.id, t.content);
      d_.special[static_cast<std::size_t>(t.id)] = t.special;
      if (t.normalized) t.content = as_normalized(t);
      d_.texts[static_cast<std::size_t>(t.id)] = t.special ? "" : t.content;
      (t.normalized ? normalized : raw).push_back(t);
    }
    d_.added = AddedTokens(std::move(raw));
    d_.added_normalized = AddedTokens(std::move(normalized));
  }

  std::string as_normalized(const AddedToken& t) const {
    Passage p({t.content, {}, Start::text});
    if (d_.normalizer && !d_.normalizer->keeps(p.all())) d_.normalizer->apply(p);
    if (p.text.empty()) fail(root_.where(), "added_tokens: the normalizer leaves nothing of '", shown(t.content), "'");
    return p.text;
  }

  void read_post_processor(const Node& n) {
    const std::string_view type = type_of(n);
    if (type == "Sequence") {
      for (const Node& item : n.at("processors").items()) read_post_processor(item);
    } else if (type == "ByteLevel") {
      d_.trims_offsets = n.flag_or("trim_offsets", true);
      d_.keeps_first_blank = n.flag_or("add_prefix_space", true);
    } else if (type == "TemplateProcessing") {
      read_template(n);
    } else {
      n.at("type").unknown("ByteLevel, TemplateProcessing, Sequence");
    }
  }

  void read_template(const Node& n) {
    bool text = false;
    for (const Node& item : n.at("single").items()) {
      if (item.has("Sequence")) {
        if (text) item.wrong("the text occurs twice");
        text = true;
        continue;
      }
      const Node name = item.at("SpecialToken").at("id");
      const Node tokens = n.at("special_tokens").at(name.text().c_str());
      for (const Node& id : tokens.at("ids").items()) {
        if (static_cast<std::size_t>(id.id()) >= d_.pieces.size()) id.wrong("the vocabulary has no such id");
        (text ? d_.after : d_.before).push_back(id.id());
      }
    }
    if (!text) n.at("single").wrong("the text itself is missing");
  }

  Node root_;
  std::int64_t size_ = 0;  // number of entries of `vocab`
  Decoding decoding_;
  Description d_;
  std::vector<bool> used_;
};

Json parsed(const std::string& text, const std::string& file, DuplicateKeys duplicate_keys) {
  Json json;
  try {
    json = parse_json<Json>(text, {.depth = kMaxDepth, .duplicate_keys = duplicate_keys});
  } catch (const Error& e) {
    fail(file, " cannot be read as JSON: ", e.what());
  }
  if (!json.is_object()) fail(file, ": expected a JSON object, got a JSON ", json.type_name());
  return json;
}

}  // namespace

Description read_description(const std::string& text, const std::string& file) {
  const Json json = parsed(text, file, DuplicateKeys::refused);
  if (!json.contains("model")) fail(file, " is not a tokenizer.json: it has no key 'model'");
  return Reader(json, file).read();
}

std::string read_config_token(const std::string& config, const char* key, const std::string& file) {
  const Json json = parsed(config, file, DuplicateKeys::last_wins);
  const Node root(json, file + ": ");
  if (!root.has(key)) return "";
  const Node token = root.at(key);
  return token.json().is_object() ? token.at("content").text() : token.text();
}

}  // namespace ring::bpe
