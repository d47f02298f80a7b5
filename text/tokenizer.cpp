#include "text/tokenizer.h"

#include <fcntl.h>

#include <filesystem>

#include "core/check.h"
#include "core/files.h"
#include "core/hash.h"
#include "text/utf8.h"

namespace ring {
namespace {

// Format of a tokenizer file: this line; "hash " and the xxh3-64 of everything after the hash line; "kind " and the
// kind; the payload. Version 3 adds begin_of_text; tokenizers without it are written as version 2, which older programs
// can read.
constexpr std::string_view kMagic = "ringmaster tokenizer 2\n", kMagicWithBegin = "ringmaster tokenizer 3\n";
constexpr std::string_view kAnyVersion = "ringmaster tokenizer ";
constexpr std::size_t kHashLine = 5 + 16 + 1;
constexpr char kModelStart = '\x0A';  // first byte of a SentencePiece model: the tag of its first piece

class BytesTokenizer final : public Tokenizer {
 public:
  static constexpr std::int32_t kEndOfText = 256;

  std::string_view kind() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return 257; }
  std::optional<std::int32_t> end_of_text() const override { return kEndOfText; }
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<ByteEncoder>(); }

  std::string bytes_of(std::int32_t id) const override {
    check_id(id);
    return id == kEndOfText ? "" : std::string(1, static_cast<char>(id));
  }
  std::string piece(std::int32_t id) const override {
    if (id == kEndOfText) return "<|endoftext|>";
    const std::string byte = bytes_of(id);
    if (id > 0x20 && id < 0x7F) return byte;
    const std::string hex = hex64(static_cast<std::uint64_t>(id)).substr(14);
    return "<0x" + hex + ">";
  }

  std::string payload() const override { return ""; }

 private:
  class ByteEncoder final : public Encoder {
   public:
    void encode(std::string_view text, std::vector<std::int32_t>& out) override {
      const auto* p = reinterpret_cast<const unsigned char*>(text.data());
      out.insert(out.end(), p, p + text.size());
    }
  };
};

}  // namespace

EncodeReport& EncodeReport::operator+=(const EncodeReport& o) {
  invalid_bytes += o.invalid_bytes;
  unknown += o.unknown;
  return *this;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeReport* report) const {
  std::vector<std::int32_t> ids;
  const auto e = encoder();
  e->encode(text, ids);
  if (report) *report += e->report();
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string out;
  for (std::int32_t id : ids) out += bytes_of(id);
  if (blank_in_front() && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

std::vector<PlacedToken> Tokenizer::encode_placed(std::string_view text) const {
  std::vector<PlacedToken> placed;
  std::size_t at = 0;
  for (const std::int32_t id : encode(text)) {
    std::string bytes = bytes_of(id);
    if (placed.empty() && blank_in_front() && bytes.starts_with(' ')) bytes.erase(0, 1);
    if (text.substr(at, bytes.size()) != bytes)
      fail("the ", kind(), " tokenizer changes the text at byte ", at, ", so the positions of its tokens are unknown");
    std::size_t begin = at, end = at += bytes.size();
    while (begin > 0 && begin < text.size() && utf8::is_continuation(text[begin])) --begin;
    while (end < text.size() && utf8::is_continuation(text[end])) ++end;
    placed.push_back({id, begin, end});
  }
  return placed;
}

std::string Tokenizer::serialize() const {
  const std::string rest = str("kind ", kind(), "\n", payload());
  return str(begin_of_text() ? kMagicWithBegin : kMagic, "hash ", hex64(xxh3(rest)), "\n", rest);
}

std::string Tokenizer::hash() const { return hex64(xxh3(str("kind ", kind(), "\n", hashed_payload()))); }

void Tokenizer::check_id(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail("token ", id, " is outside the vocabulary of the ", kind(), " tokenizer, which has ", vocab_size(), " tokens");
  }
}

std::shared_ptr<const Tokenizer> bytes_tokenizer() { return std::make_shared<BytesTokenizer>(); }

namespace {

// Returns the part after the hash line. Throws Error if the hash does not match.
std::string_view checked_body(std::string_view bytes, const std::string& name) {
  const std::string_view rest = bytes.substr(kMagic.size());
  const bool whole = rest.size() > kHashLine && rest.starts_with("hash ") && rest[kHashLine - 1] == '\n';
  const std::string_view body = whole ? rest.substr(kHashLine) : "";
  const std::string hash = hex64(xxh3(body));
  if (!whole || rest.substr(5, 16) != hash) {
    fail(name, " is damaged: its contents have hash ", hash,
         ", but its second line states a different one; copy it again from its source, or train it again");
  }
  return body;
}

std::shared_ptr<const Tokenizer> parse_body(std::string_view body, const std::string& name) {
  const std::size_t end = body.find('\n');
  const std::string_view line = body.substr(0, end);
  if (end == std::string_view::npos || !line.starts_with("kind "))
    fail(name, " is damaged: its third line does not name a kind of tokenizer; train it again");
  const std::string_view kind = line.substr(5), payload = body.substr(end + 1);
  if (kind == "bytes") return bytes_tokenizer();
  if (kind == "sentencepiece") return sentencepiece_tokenizer(std::string(payload), name);
  if (kind == "tokenizer.json") return json_tokenizer_of(payload, name);
  if (kind != "chars")
    fail(name, " holds a tokenizer of the unknown kind '", kind.substr(0, 40),
         "'; known kinds: bytes, chars, sentencepiece, tokenizer.json");
  if (!payload.starts_with("end_of_text 0\n") && !payload.starts_with("end_of_text 1\n"))
    fail(name, " is damaged: its fourth line should be 'end_of_text 0' or 'end_of_text 1'; train it again");
  return chars_tokenizer(payload.substr(14), payload[12] == '1');
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string bytes, const std::string& name) {
  if (bytes.empty())
    fail(name, ": expected a tokenizer, got an empty file; write one with 'ringmaster tokenizer train'");
  if (bytes.starts_with(kMagic) || bytes.starts_with(kMagicWithBegin)) {
    auto tokenizer = parse_body(checked_body(bytes, name), name);
    if (bytes.starts_with(kMagicWithBegin) != tokenizer->begin_of_text().has_value())
      fail(name, " is damaged: its first line states a version that does not match its contents; create it again");
    return tokenizer;
  }
  if (bytes.starts_with(kAnyVersion)) {
    fail(name, " does not begin like this program's tokenizer files ('", kMagic.substr(0, kMagic.size() - 1),
         "' or 3): it has a different format, or is damaged; train it again with 'ringmaster tokenizer train'");
  }
  if (bytes[0] == '{') return json_tokenizer(std::move(bytes), name);
  if (bytes[0] != kModelStart)
    fail(name, " is neither a tokenizer file of Ringmaster nor a tokenizer.json or a SentencePiece model (",
         bytes.size(), " bytes): it is damaged, or a different kind of file");
  return sentencepiece_tokenizer(std::move(bytes), name);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  const bool model = path.ends_with(".model"), json = path.ends_with(".json");
  const std::string_view wanted = model ? "sentencepiece" : "tokenizer.json";
  if ((model || json) && tokenizer.kind() != wanted) {
    fail("cannot write ", path, ": ",
         model ? "a .model file holds a SentencePiece model" : "a .json file holds a tokenizer.json",
         ", but this tokenizer is of kind ", tokenizer.kind(), "; use a name that ends in .rmt");
  }
  const std::string bytes = model || json ? tokenizer.plain_file() : tokenizer.serialize();
  write_atomically(path, [&](FileHandle& file) { file.write(bytes.data(), bytes.size()); });
}

std::string StreamDecoder::push(std::int32_t id) {
  held_ += tokenizer_->bytes_of(id);
  return take(false);
}

std::string StreamDecoder::finish() { return take(true); }

std::string StreamDecoder::take(bool at_end) {
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const std::size_t n = utf8::valid_length(rest);
    if (n == 0 && !at_end && utf8::is_incomplete(rest)) break;
    if (n == 0) {
      utf8::append(out, utf8::kReplacement);
    } else {
      out += rest.substr(0, n);
    }
    rest.remove_prefix(n ? n : 1);
  }
  held_ = rest;
  return out;
}

}  // namespace ring
