// Implements the Tokenizer interface for SentencePiece models.
//
// The library is slow for long strings and copies much data per call. So text is split where no piece of the vocabulary
// can span the split, which leaves the tokens unchanged, and the tokens of short parts are cached. Text is first
// normalized by sentencepiece_normalizer.h. Bytes that the library would change (invalid UTF-8, and U+2581, its symbol
// for a space) are encoded with the vocabulary's byte tokens.

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>

#include "core/check.h"
#include "text/sentencepiece_check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace ring {
namespace {

constexpr std::size_t kLongest = 16384;  // maximum bytes per library call, whose time grows faster than linearly

// Bytes to append to a model, so that the library does not normalize each part separately. Appended fields of a
// protocol buffers message override earlier ones. In normalizer_spec (field 3 of the model), sets precompiled_charsmap
// (2) = "", add_dummy_prefix (3) = false and remove_extra_whitespaces (4) = false.
constexpr std::string_view kKeepText("\x1A\x06\x12\x00\x18\x00\x20\x00", 8);

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 128; }

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name)
      : model_(std::move(model)), normalizer_(checked_normalization(model_, name)) {
    const bool loaded = processor_.LoadFromSerializedProto(model_ + std::string(kKeepText)).ok() ||
                        processor_.LoadFromSerializedProto(model_).ok();
    if (!loaded || processor_.GetPieceSize() == 0) {
      fail(name, " is neither a tokenizer file of Ringmaster nor a SentencePiece model (", model_.size(), " bytes)");
    }
    bytes_.fill(-1);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) add_piece(id, name);
  }

  std::string_view kind() const override { return "sentencepiece"; }
  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> end_of_text() const override {
    if (processor_.eos_id() < 0) return std::nullopt;
    return processor_.eos_id();
  }
  std::optional<std::int32_t> bos() const override {
    return processor_.bos_id() < 0 ? std::nullopt : std::optional<std::int32_t>(processor_.bos_id());
  }
  std::vector<std::int32_t> control_tokens() const override {
    std::vector<std::int32_t> ids;
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      if (processor_.IsControl(id)) ids.push_back(id);
    return ids;
  }
  std::unique_ptr<Encoder> encoder() const override;

  std::string bytes_of(std::int32_t id) const override {
    check_id(id);
    return text_[static_cast<std::size_t>(id)];
  }
  std::string piece(std::int32_t id) const override {
    check_id(id);
    return processor_.IdToPiece(id);
  }

  std::size_t safe_prefix(std::string_view text) const override {
    for (std::size_t cut = text.size(); cut-- > 1;) {
      if (may_cut_raw(text[cut - 1], text[cut])) return cut;
    }
    return 0;
  }

  // Returns true if normalized text may be split between these bytes: no piece contains both in succession. At least
  // one byte must be ASCII, so that the split does not divide a character.
  bool may_cut_normalized(char left, char right) const {
    return (is_ascii(left) || is_ascii(right)) && !adjacent_[pair(left, right)];
  }

  std::string payload() const override { return model_; }
  std::string plain_file() const override { return model_; }
  bool blank_in_front() const override { return normalizer_.blank_in_front(); }

 private:
  friend class SentencePieceEncoder;

  static SentencePieceNormalization checked_normalization(const std::string& model, const std::string& name) {
    check_sentencepiece_model(model, name);
    return read_normalization(model, name);
  }

  // Returns true if text that is not normalized yet may be split between these bytes. If the normalizer changes text,
  // requires a word boundary, across which it replaces nothing. Always requires a known character, since a run of
  // unknown characters is one token.
  bool may_cut_raw(char left, char right) const {
    const auto known = [&](char c) { return bytes_[static_cast<unsigned char>(c)] >= 0 || characters_[c & 127]; };
    if (!normalizer_.changes_text())
      return may_cut_normalized(left, right) && (is_ascii(left) ? known(left) : known(right));
    if (!is_ascii(left) || left <= ' ' || left == 127 || (right != ' ' && right != '\n')) return false;
    bool after_blank = false;
    std::string normal;
    normalizer_.append(std::string{left, right}, after_blank, normal);
    return normal.size() == 2 && known(normal[0]) && may_cut_normalized(normal[0], normal[1]);
  }

  static std::size_t pair(char left, char right) {
    return static_cast<std::size_t>(static_cast<unsigned char>(left)) * 256 + static_cast<unsigned char>(right);
  }

  // Returns the byte of a piece "<0x0A>", or -1 for any other piece.
  static int byte_of(const std::string& piece) {
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
    unsigned byte = 0;
    const char *begin = piece.data() + 3, *end = begin + 2;
    const auto [stop, error] = std::from_chars(begin, end, byte, 16);
    return error == std::errc() && stop == end ? static_cast<int>(byte) : -1;
  }

  void add_piece(int id, const std::string& name) {
    std::string text;
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) {
      const int byte = byte_of(piece);
      if (byte < 0) fail(name, " is damaged: its token ", id, " represents a byte, but does not state which");
      bytes_[static_cast<std::size_t>(byte)] = id;
      text.assign(1, static_cast<char>(byte));
    } else if (processor_.IsUnknown(id)) {
      utf8::append(text, utf8::kReplacement);
    } else if (!processor_.IsControl(id)) {
      for (std::string_view rest = piece; !rest.empty();) {
        const bool space = rest.starts_with(kSpaceSymbol);
        text += space ? ' ' : rest[0];
        rest.remove_prefix(space ? kSpaceSymbol.size() : 1);
      }
      if (text.size() == 1 && is_ascii(text[0])) characters_.set(static_cast<std::size_t>(text[0]));
      for (std::size_t i = 1; i < text.size(); ++i) adjacent_.set(pair(text[i - 1], text[i]));
    }
    text_.push_back(std::move(text));
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::string model_;
  SentencePieceNormalizer normalizer_;
  std::vector<std::string> text_;          // text of each token
  std::array<std::int32_t, 256> bytes_{};  // token of each byte; -1 if there is none
  std::bitset<65536> adjacent_;            // true for two bytes that are adjacent in any piece
  std::bitset<128> characters_;            // ASCII characters that are pieces
};

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceTokenizer& t) : t_(t) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) override { encode_part(text, true, out); }
  void encode_continuation(std::string_view text, std::vector<std::int32_t>& out) override {
    encode_part(text, false, out);
  }

 private:
  void encode_part(std::string_view text, bool begins, std::vector<std::int32_t>& out) {
    cache_.announce(text.size());
    begin_ = out.size();
    bool space_due = begins && t_.blank_in_front();  // the space in front, until something has been encoded
    bool after_blank = begins;                       // input and output of append()
    std::string normal;
    while (!text.empty()) {
      const std::size_t clean = clean_prefix(text);
      normal.assign(space_due ? " " : "");
      const std::size_t prefix = normal.size();
      t_.normalizer_.append(text.substr(0, clean), after_blank, normal);
      text.remove_prefix(clean);
      if (text.empty() && t_.normalizer_.removes_blanks()) remove_blanks_at_end(normal);
      if (normal.size() > prefix || !text.empty()) {
        encode_clean(normal, out);
        space_due = false;
      }
      if (text.empty()) break;
      // The library would not reproduce the next character or byte, so spell() encodes it.
      const std::size_t valid = utf8::valid_length(text), n = valid ? valid : 1;
      if (!valid) ++report_.invalid_bytes;
      spell(text.substr(0, n), valid > 0, out);
      after_blank = false;
      text.remove_prefix(n);
    }
  }

  static void remove_blanks_at_end(std::string& text) { text.resize(text.find_last_not_of(' ') + 1); }

  // Returns the length of the longest prefix that is valid UTF-8 without U+2581.
  static std::size_t clean_prefix(std::string_view text) {
    const std::size_t valid = utf8::valid_prefix_length(text);
    return std::min(valid, text.substr(0, valid).find(kSpaceSymbol));
  }

  void encode_clean(std::string_view text, std::vector<std::int32_t>& out) {
    std::size_t begin = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      const bool forced = i - begin >= kLongest && !utf8::is_continuation(text[i]);
      if (!forced && !t_.may_cut_normalized(text[i - 1], text[i])) continue;
      encode_stretch(text.substr(begin, i - begin), out);
      begin = i;
    }
    if (begin < text.size()) encode_stretch(text.substr(begin), out);
  }

  void encode_stretch(std::string_view text, std::vector<std::int32_t>& out) {
    if (cache_.find(text, out)) return;
    const std::size_t old = out.size();
    const std::int64_t unknown = report_.unknown;
    call_library(text, out);
    // A text with unknown characters is not cached, since they must be counted each time.
    if (report_.unknown == unknown) cache_.keep(text, std::span(out).subspan(old));
  }

  void call_library(std::string_view text, std::vector<std::int32_t>& out) {
    const auto status = t_.processor_.Encode(absl::string_view(text.data(), text.size()), &ids_);
    if (!status.ok()) fail("SentencePiece could not encode a text of ", text.size(), " bytes: ", status.ToString());
    const int unknown = t_.processor_.unk_id();
    report_.unknown += std::count(ids_.begin(), ids_.end(), unknown);  // a run of characters is one token, counted once
    const bool goes_on = !ids_.empty() && ids_[0] == unknown && ends_unknown(out);
    out.insert(out.end(), ids_.begin() + goes_on, ids_.end());
  }

  // Returns true if `out` ends in a run of unknown characters, which is one token.
  bool ends_unknown(const std::vector<std::int32_t>& out) const {
    return out.size() > begin_ && out.back() == t_.processor_.unk_id();
  }

  void spell(std::string_view text, bool valid, std::vector<std::int32_t>& out) {
    const bool spellable =
        std::all_of(text.begin(), text.end(), [&](char c) { return t_.bytes_[static_cast<unsigned char>(c)] >= 0; });
    if (!spellable) {  // the model has no byte fallback
      report_.unknown += valid;
      if (!ends_unknown(out)) out.push_back(t_.processor_.unk_id());
      return;
    }
    for (char c : text) out.push_back(t_.bytes_[static_cast<unsigned char>(c)]);
  }

  const SentencePieceTokenizer& t_;
  WordCache cache_;
  std::vector<int> ids_;
  std::size_t begin_ = 0;  // index in `out` of this call's first token
};

std::unique_ptr<Encoder> SentencePieceTokenizer::encoder() const {
  return std::make_unique<SentencePieceEncoder>(*this);
}

}  // namespace

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name) {
  return std::make_shared<SentencePieceTokenizer>(std::move(model), name);
}

}  // namespace ring
