#pragma once
#include "core/philox.h"
#include "kernels/kernel.h"

namespace ring {

// out = alpha * x + beta * y + z; x, y, z, out contiguous of one shape and type (f32 or bf16; arithmetic f32); out may
// be one of them; y undefined with beta = 0, z undefined for none. z comes with a beta.
struct Axpby {
  Tensor x, y, out;
  float alpha = 1, beta = 0;
  Tensor z{};
};
inline Cost cost(const Axpby& a) { return cost_of(a.out, {a.x, a.beta != 0 ? a.y : Tensor{}, a.z, a.out}); }
inline constinit Kernel<Axpby> axpby_kernel{"axpby"};

// out = residual + (keep ? x / (1 - rate) : 0); residual undefined: none; rate in [0, 1). keep =
// to_uniform(random_bits( site, first_element + index)) >= rate: the same mask for any sharding. With rows, x is of
// N = rows.numel() rows of C elements, and element c of row n has the index rows[n] C + c. The backward is the same
// call on the gradient. x, residual and out: one type, f32 or bf16.
struct Dropout {
  Tensor x, residual, out;
  float rate = 0;
  RandomSite site;
  std::int64_t first_element = 0;
  float beta = 0;  // out = beta * out + ...
  Tensor rows;     // [N] i32, contiguous; or undefined
  Tensor state;    // a StepState in device memory, whose step replaces site.step; or undefined
};
inline Cost cost(const Dropout& a) { return cost_of(a.x, {a.x, a.residual, a.beta != 0 ? a.out : Tensor{}, a.out}); }
inline constinit Kernel<Dropout> dropout_kernel{"dropout"};

// out = x in out's type, rounded to nearest even: between f32 and bf16, contiguous, one number of elements.
struct Cast {
  Tensor x, out;
};
inline Cost cost(const Cast& a) { return cost_of(a.x, {a.x, a.out}); }
inline constinit Kernel<Cast> cast_kernel{"cast"};

// out[i] = std * random_normal(site, first_element + i) for i < numel; contiguous, f32 or bf16. The same values on
// every backend, up to the last bit of a logarithm or cosine.
struct RandomNormal {
  Tensor out;
  RandomSite site;
  float std = 1;
  std::int64_t first_element = 0;  // even
};
inline Cost cost(const RandomNormal& a) { return cost_of(a.out, {a.out}); }
inline constinit Kernel<RandomNormal> random_normal_kernel{"random_normal"};

}  // namespace ring
