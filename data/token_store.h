#pragma once
// A corpus: the token streams in one file, which may be far larger than memory. Every byte is checked before use, and
// no library parses the file.
//
//   2,048 bytes        the index (data/token_format.h): offsets and hashes
//   an HDF5 file, for other programs to read:
//   /                  attributes format, format_version, vocab_size, tokenizer_hash, tokenizer_kind, source
//   /tokenizer         u8: the tokenizer file
//   /chat_template     u8, if made from conversations: JSON, as text/chat/format.h writes it
//   /train, /validation  attributes tokens, documents, text_bytes, tokens_hash, and with a mask targets, target_bytes
//       tokens         u16 (vocabularies up to 65,536) or u32, contiguous
//       documents      u64, contiguous: start of each document, then the number of tokens
//       loss_mask      u8, contiguous, only if not all tokens count as targets: one bit per token, lowest bit first
//       tokens_hashes, documents_hashes, loss_mask_hashes  u64: xxh3-64 of every 64 KiB of each dataset
//
// A split without tokens has no datasets. Files without masks and chat template have format 2, others format 3.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "data/hashed_blocks.h"

namespace ring {

class Hdf5Layout;
class Tokenizer;
struct CorpusIndex;
struct MaskIndex;
struct SplitIndex;

// One split of a corpus. Valid while its TokenStore exists; thread-safe.
class TokenSplit {
 public:
  TokenSplit() = default;
  TokenSplit(const TokenSplit&) = delete;
  TokenSplit& operator=(const TokenSplit&) = delete;

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return documents_; }
  // Identifies the contents: xxh3-64 of the block hashes of tokens, document starts and mask; "" if there are no
  // tokens.
  const std::string& tokens_hash() const { return tokens_hash_; }
  std::uint64_t text_bytes() const { return text_bytes_; }  // bytes of the text that was encoded, for bits per byte
  // Copies tokens [begin, begin + count). Throws Error if the range exceeds the end, a block is damaged or the file
  // cannot be read.
  void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const;
  // Returns the first token of a document; document = documents() gives tokens().
  std::uint64_t document_start(std::uint64_t document) const;

  bool masked() const { return mask_data_.bytes() > 0; }        // false if all tokens count as targets
  std::uint64_t targets() const { return targets_; }            // number of tokens that count as targets
  std::uint64_t target_bytes() const { return target_bytes_; }  // text bytes of the tokens that count as targets
  // Writes 1 for each token of [begin, begin + count) that counts as a target, else 0. Throws the same errors as
  // read().
  void read_mask(std::uint64_t begin, std::size_t count, std::uint8_t* out) const;

  // Returns true if documents 2k and 2k + 1 are a prompt with its chosen and with its rejected answer.
  bool pairs() const { return pairs_; }

  const std::string& name() const { return name_; }  // name for error messages
  const HashedBlocks& token_data() const { return token_data_; }
  const HashedBlocks& start_data() const { return start_data_; }  // u64 document starts
  const HashedBlocks& mask_data() const { return mask_data_; }    // empty if not masked()

 private:
  friend class TokenStore;
  void load(const std::shared_ptr<const FileHandle>&, const SplitIndex&, const MaskIndex&, const std::string& name,
            std::uint64_t vocab);
  void check_tokens(std::uint64_t offset, std::span<const std::byte> block) const;
  void check_starts(std::uint64_t offset, std::span<const std::byte> block) const;
  void check_mask(std::uint64_t offset, std::span<const std::byte> block) const;
  HashedBlocks token_data_, start_data_, mask_data_;
  std::uint64_t tokens_ = 0, documents_ = 0, text_bytes_ = 0, vocab_ = 0, targets_ = 0, target_bytes_ = 0;
  std::size_t width_ = 2;
  std::string name_;
  std::string tokens_hash_;
  bool pairs_ = false;
};

// Document starts of a split, read a group at a time. Not thread-safe.
class DocumentStarts {
 public:
  explicit DocumentStarts(const TokenSplit& split) : split_(split) {}
  std::uint64_t operator()(std::uint64_t document);  // returns TokenSplit::document_start()
  std::uint64_t document_of(std::uint64_t token);    // returns the document that contains the token

 private:
  void read_group(std::uint64_t first_document);
  const TokenSplit& split_;
  std::uint64_t first_ = 0;  // index of the first start in held_
  std::vector<std::uint64_t> held_;
};

class TokenStore {
 public:
  // Opens a corpus and checks everything except the data of the splits. Throws Error, which names the file and the
  // remedy, if the file is missing, not a corpus, truncated, in a different format, or damaged.
  static std::shared_ptr<const TokenStore> open(const std::string& path);
  // Returns true for corpora and for any HDF5 file: open() then explains why it rejects a file.
  static bool looks_like_corpus(const FileHandle&);
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;

  const std::string& path() const { return path_; }
  const TokenSplit& train() const { return splits_[0]; }
  const TokenSplit& validation() const { return splits_[1]; }
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(vocab_); }
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  const std::string& tokenizer_kind() const { return tokenizer_kind_; }
  const std::string& source() const { return source_; }  // one line that describes where the corpus came from
  const std::string& chat_template() const { return chat_template_; }  // JSON (text/chat/format.h); "" if there is none
  std::shared_ptr<const Tokenizer> tokenizer() const;                  // parses the tokenizer in each call

 private:
  TokenStore() = default;
  void load_index();
  std::string path_, tokenizer_hash_, tokenizer_kind_, tokenizer_bytes_, source_, chat_template_;
  std::uint64_t vocab_ = 0;
  std::array<TokenSplit, 2> splits_;  // train, validation
};

// Progress and result of verify_corpus(), in bytes of the file and in blocks of 64 KiB.
struct VerifyReport {
  std::uint64_t bytes = 0, total_bytes = 0, blocks = 0, damaged = 0;
};

// Reads and checks all data of the splits. Calls damaged(message) for every damaged block, and progress() repeatedly.
VerifyReport verify_corpus(const TokenStore&, const std::function<void(const std::string&)>& damaged,
                           const std::function<void(const VerifyReport&)>& progress = {});

// Part of TokenStore::source() of a corpus that was made from pairs of answers.
inline constexpr const char* kPairsInSource = "; documents: pairs of ";

enum class Split : std::uint8_t { train, validation };

// Writes a corpus in bounded memory. The size of a contiguous dataset must be known in advance, so tokens are first
// spooled to unnamed files beside the final file, which vanish if the process dies; finish() copies the tokens.
class TokenStoreWriter {
 public:
  // masked: true if some tokens do not count as targets, so that the corpus gets a loss mask.
  TokenStoreWriter(std::string path, std::int64_t vocab_size, bool masked = false);
  void begin_document(Split);
  // Appends tokens to the current document. Throws Error if a token is outside the vocabulary, or if `is_target` is
  // false although the corpus has no mask.
  void append(Split, std::span<const std::int32_t> tokens, bool is_target = true);
  void add_text_bytes(Split, std::uint64_t bytes, bool is_target = true);
  std::uint64_t tokens(Split s) const { return streams_[static_cast<std::size_t>(s)].tokens; }
  std::uint64_t documents(Split s) const { return streams_[static_cast<std::size_t>(s)].documents; }
  // Returns the number of tokens that count as targets.
  std::uint64_t targets(Split s) const { return streams_[static_cast<std::size_t>(s)].targets; }
  // Writes the file, which appears under its name only once it is complete and durable.
  void finish(const Tokenizer&, const std::string& source, const std::string& chat_template = "");

 private:
  struct Stream {
    FileHandle tokens_file, starts_file, mask_file;
    std::vector<std::byte> tokens_buffer, mask_buffer;
    BlockHasher token_hashes, start_hashes, mask_hashes;
    std::vector<std::uint64_t> starts_buffer;
    std::uint64_t tokens = 0, documents = 0, text_bytes = 0, targets = 0, target_bytes = 0;
  };
  void flush_tokens(Stream&);
  void flush_starts(Stream&);
  void flush_mask(Stream&, std::size_t bytes);
  void mark_targets(Stream&, std::size_t tokens, bool is_target);
  struct Hashes {
    std::vector<std::uint64_t> tokens, starts, mask;
  };
  void fill_metadata(CorpusIndex&, Hdf5Layout&, const Tokenizer&, const std::string& source) const;
  Hashes lay_out_split(Hdf5Layout&, std::size_t split, SplitIndex&, MaskIndex&);
  void write_file(FileHandle&, const Tokenizer&, const std::string& source, const std::string& chat_template);
  std::string path_;
  bool masked_;
  std::uint64_t vocab_;
  std::size_t width_;
  std::array<Stream, 2> streams_;
};

}  // namespace ring
