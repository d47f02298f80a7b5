#pragma once
// Counts of attention pairs and FLOPs.

#include <vector>

#include "model/config.h"

namespace ring {

// Returns the (query, key) pairs of one sequence, summed over the layers and averaged over the heads. context: tokens
// from the beginning of a sample; 0 means model.context.
double attention_pairs(const ModelConfig& resolved, std::int64_t context = 0);

// Returns the FLOPs of one token, forward and backward: 6 per matrix weight (including the head, not the embedding),
// and 12 * heads * head_dim per layer for each pair that attention keeps (Chowdhery et al. 2022, appendix B, where all
// pairs count). A gated delta net has no pairs: it takes 6 per weight of the convolution and 18 per element of its
// state. Counts the pairs of a whole sequence, which is slow: cache the result.
double flops_per_token(const ModelConfig& resolved, std::int64_t context = 0);

// Returns the part of flops_per_token() that each block takes. The rest is head_flops_per_token().
std::vector<double> block_flops_per_token(const ModelConfig& resolved, std::int64_t context = 0);
double head_flops_per_token(const ModelConfig& resolved);

}  // namespace ring
