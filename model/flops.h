#pragma once
// What a model computes, in numbers.

#include "model/config.h"

namespace ring {

// Pairs of a query and a key in one whole context, summed over the layers; the mean of all heads.
double attention_pairs(const ModelConfig& resolved);

// FLOPs of one token, forward and backward: 6 per matrix weight (the head's included, the embedding's not), and
// 12 heads head_dim for each pair that attention keeps, per layer (Chowdhery et al. 2022, appendix B, where all pairs
// count). Counts the pairs of a whole context: keep the result.
double flops_per_token(const ModelConfig& resolved);

}  // namespace ring
