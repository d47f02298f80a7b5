#pragma once
#include "core/philox.h"
#include "kernels/kernel.h"

namespace ring {

// out = alpha * x + beta * y + z. All are contiguous, of one shape and of one type, f32 or bf16; arithmetic is f32. out
// may be x, y or z. y may be undefined if beta is 0. z may be undefined; if defined, beta must not be 0.
struct Axpby {
  Tensor x, y, out;
  float alpha = 1, beta = 0;
  Tensor z{};
};
inline Cost cost(const Axpby& a) { return cost_of(a.out, {a.x, a.beta != 0 ? a.y : Tensor{}, a.z, a.out}); }
inline constinit Kernel<Axpby> axpby_kernel{"axpby"};

// out = beta * out + residual + (keep ? x / (1 - rate) : 0), with rate in [0, 1). The mask does not depend on sharding:
//   keep = to_uniform(random_bits(site, first_element + index)) >= rate.
// index is the element's index in x. If `rows` is defined, x has N = rows.numel() rows of C elements, and element c of
// row n has the index rows[n] * C + c. The backward is the same call on the gradient. x, residual (may be undefined)
// and out have one type, f32 or bf16.
struct Dropout {
  Tensor x, residual, out;
  float rate = 0;
  RandomSite site;
  std::int64_t first_element = 0;
  float beta = 0;
  Tensor rows;   // [N] i32, contiguous; may be undefined
  Tensor state;  // a StepState in device memory, whose step replaces site.step; may be undefined
};
inline Cost cost(const Dropout& a) { return cost_of(a.x, {a.x, a.residual, a.beta != 0 ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Dropout> dropout_kernel{"dropout"};

// Converts x to the type of out, f32 or bf16, rounding to nearest even. Both tensors are contiguous and
// have the same number of elements.
struct Cast {
  Tensor x, out;
};
inline Cost cost(const Cast& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<Cast> cast_kernel{"cast"};

// out[i] = std * random_normal(site, first_element + i) for i < numel; contiguous, f32 or bf16. All backends produce
// the same values, except for the last bit of a logarithm or cosine.
struct RandomNormal {
  Tensor out;
  RandomSite site;
  float std = 1;
  std::int64_t first_element = 0;  // must be even
};
inline Cost cost(const RandomNormal& a) { return cost_of(a.out, {a.out}); }
inline constinit Kernel<RandomNormal> random_normal_kernel{"random_normal"};

}  // namespace ring
