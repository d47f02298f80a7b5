#pragma once
// Where a loss that is not finite came from.

#include <string>

#include "model/decoder.h"

namespace ring {

// Index of the first element that is NaN or infinite, -1: none. Blocks the host.
std::int64_t first_non_finite(const Tensor& f32, const Context&);

// Names the first non-finite tensor, empty: none, in the order in which a step computes: weights, then the activations of a forward
// pass over `ids` (`Run`: of the failed micro-batch), then gradients. Weights are those of the failed step: the optimizer left them alone.
std::string find_non_finite(Decoder&, Run, const Tensor& ids, const Sequences&);

}  // namespace ring
