#pragma once
// Token data sets in the format of Megatron-LM's preprocess_data: PREFIX.bin contains the tokens, PREFIX.idx the
// position of each sequence and the sequences of each document. The layout is little-endian, without gaps. Source:
// Megatron-LM, megatron/core/datasets/indexed_dataset.py.
//
//   PREFIX.idx  "MMIDIDX\0\0", u64 version 1, u8 code of the token type, u64 sequences S, u64 document boundaries D,
//               i32[S] tokens of each sequence, i64[S] byte of PREFIX.bin at which it starts,
//               i64[D] first sequence of each document, then S

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/files.h"

namespace ring {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kMegatronHead = 34;                   // number of bytes before the tables
inline constexpr std::size_t kMegatronBlock = std::size_t{1} << 18;  // maximum bytes or tokens of a read or write

class MegatronDataset {
 public:
  // Reads the index once; memory use does not depend on the file sizes. Throws Error, which names the file and the
  // remedy, if one of the two files is missing, if the index has a different format, is damaged or truncated, or if the
  // files do not belong together.
  explicit MegatronDataset(const std::string& prefix);

  // Receives documents in order: add_part() adds tokens (at least one) to the current document; end() ends the
  // document.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void add_part(std::span<const std::int32_t> tokens) = 0;
    virtual void end() = 0;
  };
  // Passes all nonempty documents to `sink`. Throws Error if a token is not below `vocab_size`, the vocabulary size of
  // `owner`.
  void read(std::uint64_t vocab_size, const std::string& owner, Sink& sink) const;

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t bytes() const { return data_.size(); }  // size of PREFIX.bin
  std::uint64_t token_bytes() const;                    // bytes of one token in PREFIX.bin

  struct TokenType;  // type in which PREFIX.bin stores tokens

 private:
  void read_head();
  void check_sequences();
  void check_documents() const;
  // Returns the offset of the table of starts in the index.
  std::uint64_t starts_at() const { return kMegatronHead + 4 * sequences_; }
  std::uint64_t documents_at() const { return starts_at() + 8 * sequences_; }
  std::uint64_t index_end() const { return documents_at() + 8 * boundaries_; }
  FileHandle index_, data_;
  const TokenType* type_ = nullptr;
  std::uint64_t sequences_ = 0, boundaries_ = 0, tokens_ = 0;
};

bool begins_megatron_index(std::string_view head);
// Returns PREFIX if `path` is PREFIX.bin or PREFIX.idx and the index begins with the magic bytes, or was truncated
// within them; else "".
std::string megatron_prefix(const std::string& path);

}  // namespace ring
