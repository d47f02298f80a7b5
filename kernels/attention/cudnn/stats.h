#pragma once
// The log-sum-exp between our layout and that of cuDNN's backward.

#include "kernels/kernel.h"

namespace ring::cudnn {

// lse [heads, batch * length] -> [batch, heads, length], both f32.
Tensor by_sequence(const Tensor& lse, std::int64_t batch, const Context&);

}  // namespace ring::cudnn
