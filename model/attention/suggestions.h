#pragma once
// Attention sections to try at a given context. `ringmaster plan --advise` compares them.

#include <cstdint>
#include <string>
#include <vector>

#include "model/attention/config.h"

namespace ring {

struct SuggestedAttention {
  std::string name;  // "dense", "window", "dilated", "pools", or the pattern of the block_sparse rule
  AttentionConfig section;
};

// Returns a window of `window` tokens, with sinks.
AttentionConfig suggested_window(std::int64_t window);

// Returns
// * dense attention
// * suggested_window(window)
// * LongNet: segments that double from 2048 tokens to the context, with rates that double
// * block-sparse: number of blocks grows with the logarithm of the distance
// * block-sparse: as many tokens as the window has, in blocks selected by content, by an indexer (learned), and by
//   importance (three entries)
// * the window together with pools
std::vector<SuggestedAttention> suggested_attention(std::int64_t context, std::int64_t window);

}  // namespace ring
