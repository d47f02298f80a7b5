#pragma once
// How likely given tokens are, without a loss: what tasks of evaluation ask for.

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace ring {

struct TargetScores {
  std::vector<double> log_probability;  // natural, from logits in f32
  std::vector<bool> likeliest;          // no other token has a larger logit
};

// hidden: the result of Model::hidden() in this run. targets[i] is what follows token rows[i] of the run; only their
// logits are computed, some at a time. The slices of a model (Run::tp) are given the same rows and get the same bits.
// Also called with no rows where other ranks have some: it enters the loss head's scope. Error: a logit is not finite.
TargetScores target_scores(const Model&, Run&, const Tensor& hidden, const std::vector<std::int32_t>& rows,
                           const std::vector<std::int32_t>& targets);

}  // namespace ring
