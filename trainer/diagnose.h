#pragma once
// Finds the origin of a non-finite loss.

#include <string>

#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

// Returns the index of the first element that is NaN or infinite; -1 if there is none. Blocks the host.
std::int64_t first_non_finite(const Tensor& f32, const ExecContext&);

// Check the stages of a step, in the order of computation. Each function returns the name of the first tensor that is
// not finite, or "" if all are finite.
std::string non_finite_weight(const OwnedShard&, const ExecContext&);  // checks the weights that this process owns
// Runs the forward pass of one micro-batch.
std::string non_finite_activation(Model&, Run, const Tensor& ids, const Sequences&);
std::string non_finite_gradient(const OwnedShard&, const ExecContext&);

}  // namespace ring
