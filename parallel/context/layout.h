#pragma once
// The positions in a row of tokens that each rank of the cp axis holds.
//   zigzag       2P chunks; rank i holds chunks i and 2P - 1 - i, which balances causal attention.
//   contiguous   P chunks; rank i holds chunk i, so that most neighbours in the row are on one rank.
// Chunks begin at multiples of `align` and differ in length by at most `align`; some may be empty.

#include <cstdint>
#include <vector>

#include "autograd/context_exchange.h"
#include "kernels/attention/pattern.h"

namespace ring {

enum class ContextLayoutChoice : std::uint8_t { automatic, zigzag, contiguous };
enum class ContextLayoutKind : std::uint8_t { zigzag, contiguous };

class ContextLayout {
 public:
  struct Chunk {
    std::int64_t begin, end;  // positions [begin, end)
    bool operator==(const Chunk&) const = default;
  };
  using Chunks = std::vector<Chunk>;

  // Throws Error if length, ranks or align is below 1.
  ContextLayout(ContextLayoutKind kind, std::int64_t length, int ranks, std::int64_t align = 1);

  int ranks() const { return static_cast<int>(chunks_.size()); }
  std::int64_t length() const { return length_; }
  // Returns a rank's chunks, sorted.
  const Chunks& chunks(int rank) const { return chunks_[static_cast<std::size_t>(rank)]; }
  std::int64_t tokens_of_rank(int rank) const;  // tokens of each row that a rank holds

  // Returns the shards of a micro-batch of `rows` consecutive rows. documents: spans of the whole micro-batch.
  ContextShards shards(int rank, std::int64_t rows, std::vector<Span> documents) const;

 private:
  std::int64_t length_;
  std::vector<Chunks> chunks_;  // by rank; empty chunks are left out
};

// Returns how ranks share each part of a contiguous layout, such as a chunk of a sequence (train.sequence_chunk): in
// contiguous slices that begin at multiples of `align`, with positions counted from the start of the part.
std::vector<ContextLayout> slices_of_parts(const ContextLayout& parts, int ranks, std::int64_t align);

// Returns the alignment of chunks, in tokens, that keeps the exchange small: the least common multiple of the patterns'
// block sizes and branch segments, without sizes that would make it longer than a chunk (length / chunks tokens). If
// chunks have many kernel tiles, the tile size is included, too.
std::int64_t context_align(const std::vector<Pattern>&, std::int64_t length, std::int64_t chunks);

// automatic: zigzag if every layer is dense, else contiguous.
ContextLayout choose_layout(ContextLayoutChoice, const std::vector<Pattern>& patterns, std::int64_t length, int ranks);

}  // namespace ring
