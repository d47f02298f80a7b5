#pragma once
// Where a loss that is not finite came from.

#include <string>

#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

// Index of the first element that is NaN or infinite, -1: none. Blocks the host.
std::int64_t first_non_finite(const Tensor& f32, const ExecContext&);

// The parts of a step in the order in which they are computed; each names its first tensor that is not finite, empty:
// none.
std::string non_finite_weight(const OwnedShard&, const ExecContext&);  // of those that this process holds
std::string non_finite_activation(Model&, Run, const Tensor& ids,
                                  const Sequences&);  // of one micro-batch's forward pass
std::string non_finite_gradient(const OwnedShard&, const ExecContext&);

}  // namespace ring
