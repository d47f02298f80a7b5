#pragma once
// Tokenizers: text to token numbers and back. One value describes one vocabulary; it is immutable and safe to share
// between threads.
//
//   bytes          256 bytes and an end-of-text token; exact for any input
//   chars          the characters of a text, sorted; no end-of-text token unless asked for
//   sentencepiece  a SentencePiece model (unigram or BPE); with byte fallback exact for any input
//   tokenizer.json byte-pair encoding as Hugging Face's tokenizers describes it

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

// What an encoder met besides clean text.
struct EncodeReport {
  std::int64_t invalid_bytes = 0;  // bytes that are not UTF-8 (a `bytes` tokenizer never counts any)
  std::int64_t unknown =
      0;  // characters that the vocabulary cannot express: replaced, or dropped when it has no unknown token
  EncodeReport& operator+=(const EncodeReport&);
};

// Encodes many texts; holds a cache, so one per thread. Lives no longer than its tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) = 0;  // a whole text; appends
  // Text that goes on with what was encoded before: no blank is put in front of it.
  virtual void go_on(std::string_view text, std::vector<std::int32_t>& out) { encode(text, out); }
  // Returns how many of the last bytes of `text` belong to the first token of `next`, which follows it: blank space in
  // front of a token with lstrip.
  virtual std::size_t taken_by_next(std::string_view /*text*/, std::string_view /*next*/) const { return 0; }
  const EncodeReport& report() const { return report_; }

 protected:
  EncodeReport report_;
};

// A token of a text, and the bytes [begin, end) that it stands for.
struct PlacedToken {
  std::int32_t id = 0;
  std::uint64_t begin = 0, end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> end_of_text() const = 0;  // separates documents
  // Returns the token that a text without any other beginning starts with, bos_token of a tokenizer_config.json. It is
  // no part of other texts unless before_text() has it.
  virtual std::optional<std::int32_t> begin_of_text() const { return std::nullopt; }
  // What stands around each text for the model, such as a beginning-of-text token. Encoding adds none of it.
  virtual std::vector<std::int32_t> before_text() const { return {}; }
  virtual std::vector<std::int32_t> after_text() const { return {}; }
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // The bytes of one token: empty for a control token such as end-of-text. Error: id outside the vocabulary.
  virtual std::string bytes_of(std::int32_t id) const = 0;
  // How people should see one token: control tokens by name, bytes of no meaning alone as <0x..>.
  virtual std::string piece(std::int32_t id) const = 0;
  // How many of the first bytes of `text` (valid UTF-8 or not) can be encoded without seeing the rest and give the same
  // tokens as within the whole; 0: none. A long document is encoded in such pieces.
  virtual std::size_t safe_prefix(std::string_view text) const = 0;

  std::vector<std::int32_t> encode(std::string_view text, EncodeReport* report = nullptr) const;
  std::string decode(std::span<const std::int32_t> ids) const;  // of a text from its beginning
  // encode(), and where each token lies. A token that is part of a character has the bytes of the whole character.
  // Error: tokens do not spell the text, as of one that is not UTF-8 where the vocabulary has no bytes.
  virtual std::vector<PlacedToken> encode_placed(std::string_view text) const;

  // Everything that describes the vocabulary, as the bytes of a tokenizer file; parse_tokenizer() reads them.
  std::string serialize() const;
  std::string hash() const;  // 16 hexadecimal digits: the xxh3-64 of what describes the vocabulary, as the file says it
  virtual std::string payload() const = 0;  // the same without a header
  // Returns the part of payload() that hash() covers: all that decides which tokens a corpus has.
  virtual std::string hashed_payload() const { return payload(); }
  // The file of another program that it is, as it was read: of tokenizer.model, tokenizer.json; others have none.
  virtual std::string plain_file() const { return ""; }
  virtual bool blank_in_front() const { return false; }  // encode() puts a blank there; decode() takes it away

 protected:
  void check_id(std::int32_t id) const;
};

std::shared_ptr<const Tokenizer> bytes_tokenizer();
// `characters`: UTF-8, any order and any number of each. Error: none, or not UTF-8.
std::shared_ptr<const Tokenizer> chars_tokenizer(std::string_view characters, bool end_of_text = false);
// `model`: the bytes of a SentencePiece .model file; `name` is said in errors.
std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name = "model");

// `json`: the bytes of a tokenizer.json; `config`: those of the tokenizer_config.json beside it, which says what ends a
// text, or nothing: then it is the first special token of those that published models use. Error names `name`, the key,
// and what is missing here.
std::shared_ptr<const Tokenizer> json_tokenizer(std::string json, const std::string& name,
                                                const std::string& config = "");
// From its payload().
std::shared_ptr<const Tokenizer> json_tokenizer_of(std::string_view payload, const std::string& name);

// The bytes of a tokenizer file: ours, whose hash is checked, or a SentencePiece .model or a tokenizer.json, which have
// none. Error names `name`.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string bytes, const std::string& name);
// Written to a temporary name and renamed. A path ending in .model or .json gets the plain SentencePiece model or
// tokenizer.json.
void save_tokenizer(const Tokenizer&, const std::string& path);

// Decodes token by token for a reader: an incomplete UTF-8 character is held back until its last byte arrives.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string push(std::int32_t id);  // what can be shown now; bytes that are no UTF-8 come out as U+FFFD
  std::string finish();               // what was held back

 private:
  std::string take(bool at_end);
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string held_;
};

}  // namespace ring
