#pragma once
// The positions in a row of tokens that each rank of the cp axis holds.
//   zigzag       2P chunks; rank i holds chunks i and 2P - 1 - i, which balances causal attention over a whole row.
//   contiguous   P chunks; rank i holds chunk i, so that most neighbours in the row are on one rank.
//   balanced     at most 2P - 1 chunks, chosen for the documents of each row, so that all ranks have the same number of
//                tokens and nearly the same number of attention pairs (balance.h).
// With zigzag and contiguous, chunks begin at multiples of `align` and differ in length by at most `align`; some may be
// empty.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/pattern.h"

namespace ring {

class PairCounter;

enum class ContextLayoutChoice : std::uint8_t { automatic, zigzag, contiguous, balanced };
enum class ContextLayoutKind : std::uint8_t { zigzag, contiguous, balanced };
constexpr std::string_view to_string(ContextLayoutKind k) {
  return k == ContextLayoutKind::zigzag ? "zigzag" : k == ContextLayoutKind::contiguous ? "contiguous" : "balanced";
}

class ContextLayout {
 public:
  struct Chunk {
    std::int64_t begin, end;  // positions [begin, end)
    bool operator==(const Chunk&) const = default;
  };
  using Chunks = std::vector<Chunk>;

  // Makes a zigzag or contiguous layout. Throws Error if length, ranks or align is below 1.
  ContextLayout(ContextLayoutKind kind, std::int64_t length, int ranks, std::int64_t align = 1);
  // Makes a balanced layout. layers: the pattern of each layer; every layer has kv_heads KV heads. Throws Error if
  // `ranks` does not divide `length`.
  ContextLayout(const std::vector<Pattern>& layers, std::int64_t kv_heads, std::int64_t length, int ranks);

  ContextLayoutKind kind() const { return kind_; }
  int ranks() const { return ranks_; }
  std::int64_t length() const { return length_; }
  // Returns a rank's chunks, sorted. Throws Error if the layout is balanced: its chunks depend on documents.
  const Chunks& chunks(int rank) const;
  std::int64_t tokens_of_rank(int rank) const;  // tokens of each row that a rank holds

  // Returns the shards of a micro-batch of `rows` consecutive rows. documents: spans of the whole micro-batch. A pure
  // function of the arguments, so all ranks get the same shards.
  ContextShards shards(int rank, std::int64_t rows, std::vector<Span> documents) const;

 private:
  std::vector<Chunks> balanced_chunks(const std::vector<Span>& documents) const;

  ContextLayoutKind kind_;
  std::int64_t length_;
  int ranks_;
  std::vector<Chunks> chunks_;  // by rank; empty chunks are left out; none if the layout is balanced
  // Set if the layout is balanced.
  std::shared_ptr<const PairCounter> pairs_;
  std::int64_t block_ = 0;  // chunks begin at multiples of it
};

// Returns the row number in the micro-batch of each of these rows.
std::vector<std::int32_t> global_rows(const std::vector<LocalRows>&);

// Returns how ranks share each part of a contiguous layout, such as a chunk of a sequence (train.sequence_chunk): in
// contiguous slices that begin at multiples of `align`, with positions counted from the start of the part.
std::vector<ContextLayout> slices_of_parts(const ContextLayout& parts, int ranks, std::int64_t align);

// Returns the alignment of chunks, in tokens, that keeps the exchange small: the least common multiple of the patterns'
// block sizes and branch segments, without sizes that would make it longer than a chunk (length / chunks tokens). If
// chunks have many kernel tiles, the tile size is included, too.
std::int64_t context_align(const std::vector<Pattern>&, std::int64_t length, std::int64_t chunks);

// automatic: zigzag if every layer is dense, else contiguous. patterns: the pattern of each layer. Throws Error if
// `ranks` does not divide the length of a balanced layout.
ContextLayout choose_layout(ContextLayoutChoice, const std::vector<Pattern>& patterns, std::int64_t kv_heads,
                            std::int64_t length, int ranks);

}  // namespace ring
