#pragma once
// What a model computes, in numbers.

#include "model/config.h"

namespace ring {

// Pairs of a query and a key in one sequence, summed over the layers; the mean of all heads. context: its tokens, from
// the beginning of a sample; 0: all of them.
double attention_pairs(const ModelConfig& resolved, std::int64_t context = 0);

// FLOPs of one token, forward and backward: 6 per matrix weight (the head's included, the embedding's not), and
// 12 heads head_dim for each pair that attention keeps, per layer (Chowdhery et al. 2022, appendix B, where all pairs
// count). Counts the pairs of a whole sequence: keep the result.
double flops_per_token(const ModelConfig& resolved, std::int64_t context = 0);

}  // namespace ring
