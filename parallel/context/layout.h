#pragma once
// Which positions of a row of tokens each rank of the cp axis holds.
//   zigzag       2P chunks; rank i holds chunks i and 2P - 1 - i: causal attention is balanced.
//   contiguous   P chunks; rank i holds chunk i: neighbours in the row are mostly on one rank.
// Chunks begin at multiples of `align` and differ by at most `align`; some may be empty.

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
    std::int64_t begin, end;  // positions
    bool operator==(const Chunk&) const = default;
  };

  // Error: no rank, no token, or an alignment below 1.
  ContextLayout(ContextLayoutKind kind, std::int64_t length, int ranks, std::int64_t align = 1);

  int ranks() const { return static_cast<int>(chunks_.size()); }
  std::int64_t length() const { return length_; }
  const std::vector<Chunk>& chunks(int rank) const { return chunks_[static_cast<std::size_t>(rank)]; }  // ascending
  std::int64_t tokens(int rank) const;                                                                  // of a row

  // Who holds what of `rows` rows, which lie one after the other. documents: spans of the whole micro-batch.
  ContextShards shards(int rank, std::int64_t rows, std::vector<Span> documents) const;

 private:
  std::int64_t length_;
  std::vector<std::vector<Chunk>> chunks_;  // without empty ones
};

// The largest number of tokens at whose multiples chunks may begin so that the least is exchanged: segments of
// branches and blocks, as far as they fit into a chunk of length / chunks tokens; and tiles of kernels, where a chunk
// has many.
std::int64_t context_align(const std::vector<Pattern>&, std::int64_t length, std::int64_t chunks);

// automatic: zigzag where every layer is dense.
ContextLayout choose_layout(ContextLayoutChoice, const std::vector<Pattern>& patterns, std::int64_t length, int ranks);

}  // namespace ring
