#pragma once
#include "core/philox.h"
#include "kernels/kernel.h"

namespace ring {

// out = alpha * x + beta * y; x, y, out contiguous of one shape; out may be x or y; y undefined with beta = 0.
struct Axpby {
  Tensor x, y, out;
  float alpha = 1, beta = 0;
};
inline constinit Kernel<Axpby> axpby_kernel{"axpby"};

// out = residual + (keep ? x / (1 - rate) : 0); residual undefined: none; rate in [0, 1). keep = to_uniform(random_bits(
// site, first_element + index)) >= rate: the same mask for any sharding. The backward is the same call on the gradient.
struct Dropout {
  Tensor x, residual, out;
  float rate = 0;
  RandomSite site;
  std::int64_t first_element = 0;
  float beta = 0;  // out = beta * out + ...
};
inline constinit Kernel<Dropout> dropout_kernel{"dropout"};

}  // namespace ring
