#pragma once
// Data sets of tokens as Megatron-LM's preprocess_data writes them: PREFIX.bin, the tokens, and PREFIX.idx, where each
// sequence of them lies and which sequences are one document. Source of the layout, little-endian and without gaps:
// Megatron-LM, megatron/core/datasets/indexed_dataset.py.
//
//   PREFIX.idx  "MMIDIDX\0\0", u64 version 1, u8 type of a token, u64 sequences S, u64 document boundaries D,
//               i32[S] tokens of each sequence, i64[S] the byte of PREFIX.bin where it starts,
//               i64[D] the sequence with which each document starts, then S

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files.h"

namespace ring {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kMegatronHead = 34;  // bytes in front of the tables

class MegatronDataset {
 public:
  // Reads the index once. Error names the file and what to do: one of the two is missing, the index is foreign, damaged
  // or truncated, or the two do not belong together. Memory does not grow with the files.
  explicit MegatronDataset(const std::string& prefix);

  // Takes documents in order: some tokens of the current one, never none; and its end.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void part(std::span<const std::int32_t> tokens) = 0;
    virtual void end() = 0;
  };
  // Gives `sink` all documents that have a token. Error: a token is not below `vocab_size`, which is `owner`'s.
  void read(std::uint64_t vocab_size, const std::string& owner, Sink& sink) const;

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t bytes() const { return data_.size(); }  // of the .bin
  std::uint64_t token_bytes() const;                    // of one token there

  struct TokenType;  // how a token lies there

 private:
  void read_head();
  void check_sequences();
  void check_documents() const;
  std::uint64_t starts_at() const { return kMegatronHead + 4 * sequences_; }  // where in the index each table begins
  std::uint64_t documents_at() const { return starts_at() + 8 * sequences_; }
  std::uint64_t index_end() const { return documents_at() + 8 * boundaries_; }
  FileHandle index_, data_;
  const TokenType* type_ = nullptr;
  std::uint64_t sequences_ = 0, boundaries_ = 0, tokens_ = 0;
};

bool begins_megatron_index(std::string_view head);
// Returns PREFIX if `path` is PREFIX.bin or PREFIX.idx, and the index begins as one or was cut in its first bytes; else
// "".
std::string megatron_prefix(const std::string& path);

}  // namespace ring
