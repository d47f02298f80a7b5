#pragma once
// Log-probabilities of given tokens, for evaluation tasks.

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace ring {

struct TargetScores {
  std::vector<double> log_probability;  // natural logarithms, computed from f32 logits
  std::vector<bool> likeliest;          // true if no other token has a larger logit
};

// Returns the scores of targets[i], the token that follows token rows[i] of the run. hidden: the result of
// Model::hidden() in this run. Computes only the logits of these rows, in chunks. Collective over RunLayout::tp: all
// processes pass the same rows and get bit-identical results. Call it also with no rows if other ranks have some, since
// it enters the loss head's scope. Throws Error if a logit is not finite.
TargetScores target_scores(const Model&, Run&, const Tensor& hidden, const std::vector<std::int32_t>& rows,
                           const std::vector<std::int32_t>& targets);

}  // namespace ring
