#pragma once
// Finds where a non-finite loss came from.

#include <string>

#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

// Returns the index of the first element that is NaN or infinite, or -1. Blocks the host.
std::int64_t first_non_finite(const Tensor& f32, const ExecContext&);

// Check the stages of a step, in the order in which they are computed. Each returns the name of its first tensor that
// is not finite, or "" if all are finite.
std::string non_finite_weight(const OwnedShard&, const ExecContext&);  // of the weights that this process owns
// This one runs the forward pass of one micro-batch.
std::string non_finite_activation(Model&, Run, const Tensor& ids, const Sequences&);
std::string non_finite_gradient(const OwnedShard&, const ExecContext&);

}  // namespace ring
