#pragma once
// Tokenizers: convert text to token ids and back. A Tokenizer describes a vocabulary; it is immutable and thread-safe.
//
//   bytes          256 bytes and an end-of-text token; exact for any input
//   chars          the characters of a text, sorted; no end-of-text token unless requested
//   sentencepiece  a SentencePiece model (unigram or BPE); exact for any input if it has byte fallback
//   tokenizer.json byte-pair encoding in the format of Hugging Face's tokenizers

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

// Problems that an encoder found in text.
struct EncodeReport {
  std::int64_t invalid_bytes = 0;  // number of bytes that are not valid UTF-8; always 0 for a `bytes` tokenizer
  // Number of characters that the vocabulary cannot represent: they are replaced by the unknown token, or dropped if
  // there is none.
  std::int64_t unknown = 0;
  EncodeReport& operator+=(const EncodeReport&);
};

// Encodes texts; holds a cache, so use one per thread. The tokenizer must outlive it.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Encodes a whole text; appends to `out`.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) = 0;
  // Encodes text that continues the text encoded before: does not add a space at the front.
  virtual void encode_continuation(std::string_view text, std::vector<std::int32_t>& out) { encode(text, out); }
  // Returns how many trailing bytes of `text` belong to the first token of `next`, the text that follows: the white
  // space that an added token with lstrip includes.
  virtual std::size_t taken_by_next(std::string_view /*text*/, std::string_view /*next*/) const { return 0; }
  const EncodeReport& report() const { return report_; }

 protected:
  EncodeReport report_;
};

// A token, and the range [begin, end) of bytes that it encodes.
struct PlacedToken {
  std::int32_t id = 0;
  std::uint64_t begin = 0, end = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> end_of_text() const = 0;  // the token that separates documents
  // Returns the bos_token in tokenizer_config.json, which begins a text that has no other token before it. Other texts
  // begin with it only if before_text() contains it.
  virtual std::optional<std::int32_t> begin_of_text() const { return std::nullopt; }
  // Returns the token with which other programs begin a text: begin_of_text(), or the bos_id of a SentencePiece model.
  virtual std::optional<std::int32_t> bos() const { return begin_of_text(); }
  // Returns the tokens that chat templates write by name, but whose names encode() treats as text: the control symbols
  // of a SentencePiece model, e.g. <s>. A tokenizer.json finds its special tokens itself.
  virtual std::vector<std::int32_t> control_tokens() const { return {}; }
  // Tokens that the model expects before and after each text, e.g. a beginning-of-text token. encode() does not add
  // them.
  virtual std::vector<std::int32_t> before_text() const { return {}; }
  virtual std::vector<std::int32_t> after_text() const { return {}; }
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // Returns the bytes of one token; "" for a control token, e.g. end-of-text. Throws Error if the id is outside the
  // vocabulary.
  virtual std::string bytes_of(std::int32_t id) const = 0;
  // Returns one token for display: control tokens by name, bytes that are not a character as <0x..>.
  virtual std::string piece(std::int32_t id) const = 0;
  // Returns how many leading bytes of `text` (valid UTF-8 or not) can be encoded separately without changing the tokens
  // of the whole text; 0 if none can. Used to encode a long document in pieces.
  virtual std::size_t safe_prefix(std::string_view text) const = 0;

  std::vector<std::int32_t> encode(std::string_view text, EncodeReport* report = nullptr) const;
  std::string decode(std::span<const std::int32_t> ids) const;  // decodes a whole text
  // Like encode(), but with the position of each token. A token that is part of a character gets the bytes of the whole
  // character. Throws Error if the tokens do not spell the text, e.g. if it is not UTF-8 and the vocabulary has no
  // bytes.
  virtual std::vector<PlacedToken> encode_placed(std::string_view text) const;

  // Returns the contents of a tokenizer file, which parse_tokenizer() reads.
  std::string serialize() const;
  // Returns the xxh3-64 of kind and hashed_payload() as 16 hexadecimal digits.
  std::string hash() const;
  virtual std::string payload() const = 0;  // contents of a tokenizer file without the header
  // Returns the part of payload() that hash() covers: everything that affects the tokens of a corpus.
  virtual std::string hashed_payload() const { return payload(); }
  // Returns the original tokenizer.model or tokenizer.json, unchanged; "" for other kinds.
  virtual std::string plain_file() const { return ""; }
  // True if encode() adds a space at the front and decode() removes it.
  virtual bool blank_in_front() const { return false; }

 protected:
  void check_id(std::int32_t id) const;
};

std::shared_ptr<const Tokenizer> bytes_tokenizer();
// characters: UTF-8, in any order, possibly repeated. Throws Error if they are empty or not UTF-8.
std::shared_ptr<const Tokenizer> chars_tokenizer(std::string_view characters, bool end_of_text = false);
// model: bytes of a SentencePiece .model file. name: names the model in error messages.
std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name = "model");

// json: bytes of a tokenizer.json. config: bytes of the tokenizer_config.json beside it, which names the begin- and
// end-of-text tokens, or "". If it names no end-of-text token, the first special token among the end tokens of
// published models is used. Throws Error, which names `name`, the key and the unsupported feature.
std::shared_ptr<const Tokenizer> json_tokenizer(std::string json, const std::string& name,
                                                const std::string& config = "");
// Restores the tokenizer from its payload().
std::shared_ptr<const Tokenizer> json_tokenizer_of(std::string_view payload, const std::string& name);

// Reads a tokenizer file of this project, whose hash is checked, or a SentencePiece .model or a tokenizer.json, which
// have no hash. Throws Error, which names `name`, if it cannot.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string bytes, const std::string& name);
// Writes the tokenizer to a temporary file, which is then renamed. If the path ends in .model or .json, writes the
// original SentencePiece model or tokenizer.json.
void save_tokenizer(const Tokenizer&, const std::string& path);

// Decodes a stream token by token; holds back an incomplete UTF-8 character until its last byte arrives.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string push(std::int32_t id);  // returns complete characters; invalid UTF-8 is replaced by U+FFFD
  std::string finish();               // returns the bytes that were held back, as U+FFFD

 private:
  std::string take(bool at_end);
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string held_;
};

}  // namespace ring
