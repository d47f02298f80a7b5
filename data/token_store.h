#pragma once
// A corpus: the token streams of one HDF5 file, mapped into memory, so that it may be far larger than memory.
//
//   /                  attributes format, format_version, vocab_size, tokenizer_hash, tokenizer_kind, source
//   /tokenizer         u8: the tokenizer file
//   /train, /validation  attributes tokens, documents, text_bytes, tokens_hash
//       tokens         u16 (vocabularies up to 65,536) or u32, contiguous
//       documents      u64, contiguous: where each document starts, then the number of tokens
//
// A split without tokens has no datasets.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/files.h"
#include "data/hash.h"

namespace ring {

class Tokenizer;

// One split of a corpus. Valid as long as its TokenStore.
class TokenSplit {
 public:
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return documents_; }
  const std::string& tokens_hash() const { return tokens_hash_; }  // xxh3-64 of the dataset's bytes; empty: no tokens
  std::uint64_t text_bytes() const { return text_bytes_; }  // of the text that the tokens stand for, for bits per byte
  // Copies tokens [begin, begin + count). Error: past the end, or a token outside the vocabulary (a damaged file).
  void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const;
  std::uint64_t document_start(std::uint64_t document) const;    // document = documents(): the number of tokens
  std::uint64_t document_of(std::uint64_t token) const;          // the one that holds it
  void will_need(std::uint64_t begin, std::size_t count) const;  // asks the kernel to read ahead
  void will_need_documents() const;                              // the same for where they all start

 private:
  friend class TokenStore;
  const std::byte* data_ = nullptr;
  const std::uint64_t* starts_ = nullptr;
  std::uint64_t tokens_ = 0, documents_ = 0, text_bytes_ = 0, vocab_ = 0;
  std::size_t width_ = 2;
  std::string name_;  // for errors
  std::string tokens_hash_;
};

class TokenStore {
 public:
  // Error names the file and what to do: missing, foreign, truncated, of a newer format, or damaged.
  static std::shared_ptr<const TokenStore> open(const std::string& path);
  ~TokenStore();
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;

  const std::string& path() const { return path_; }
  const TokenSplit& train() const { return train_; }
  const TokenSplit& validation() const { return validation_; }
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(vocab_); }
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  const std::string& tokenizer_kind() const { return tokenizer_kind_; }
  const std::string& source() const { return source_; }  // one line: what the corpus was made of
  std::shared_ptr<const Tokenizer> tokenizer() const;    // parsed at each call

 private:
  TokenStore() = default;
  void load();
  void map(std::uint64_t bytes);
  std::string path_, tokenizer_hash_, tokenizer_kind_, tokenizer_bytes_, source_;
  std::uint64_t vocab_ = 0;
  TokenSplit train_, validation_;
  const std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

enum class Split : std::uint8_t { train, validation };

// Writes a corpus in bounded memory: tokens are spooled beside the final file (in unnamed files that vanish with the
// process), because a contiguous dataset needs its size; finish() copies them into place.
class TokenStoreWriter {
 public:
  TokenStoreWriter(std::string path, std::int64_t vocab_size);
  void begin_document(Split);
  void append(Split, std::span<const std::int32_t> tokens);  // Error: a token outside the vocabulary
  void add_text_bytes(Split, std::uint64_t bytes);
  std::uint64_t tokens(Split s) const { return streams_[static_cast<std::size_t>(s)].tokens; }
  std::uint64_t documents(Split s) const { return streams_[static_cast<std::size_t>(s)].documents; }
  // The file appears under its name only now, complete and durable.
  void finish(const Tokenizer&, const std::string& source);

 private:
  struct Stream {
    FileHandle tokens_file, starts_file;
    std::vector<std::byte> tokens_buffer;
    StreamHash tokens_hash;
    std::vector<std::uint64_t> starts_buffer;
    std::uint64_t tokens = 0, documents = 0, text_bytes = 0;
  };
  void flush_tokens(Stream&);
  void flush_starts(Stream&);
  void write_file(const std::string& temporary, const Tokenizer&, const std::string& source);
  std::string path_;
  std::uint64_t vocab_;
  std::size_t width_;
  std::array<Stream, 2> streams_;
};

}  // namespace ring
