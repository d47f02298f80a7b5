#pragma once
// Linear layers in FP8.

#include <cstdint>

#include "autograd/tape.h"
#include "kernels/fp8.h"

namespace ring {

// A quantized matrix and its transpose.
struct Fp8Copies {
  Fp8Matrix plain, transposed;
};

// Bit mask of the operands of a linear layer that tensor parallelism shards.
enum class Fp8Shards : std::uint8_t { none = 0, input = 1, weight = 2, output = 4 };
constexpr Fp8Shards operator|(Fp8Shards a, Fp8Shards b) {
  return static_cast<Fp8Shards>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

struct Fp8Linear {
  bool tensorwise = false;     // one scale per tensor; otherwise one per 128 elements (kernels/fp8.h)
  Communicator* tp = nullptr;  // reduces the maxima of sharded operands; null if nothing is sharded
  Fp8Shards shards = Fp8Shards::none;
  // Keeps the copies of w from their first use to the last backward of the step; null quantizes w at each use.
  Fp8Copies* weight = nullptr;
  // w in FP8, if it is not available in any other form (ZeRO-3, frozen weights). The value of w is then
  // gathered->values, and the gradient slots of w and b are bound.
  const Fp8Matrix* gathered = nullptr;
  bool swiglu = false;  // the GEMMs' input is swiglu(x), computed in FP8; x is [N,2K]
  // With `swiglu`: rounds x to FP8 in blocks of rows before SwiGLU reads it, and saves the rounded x for the backward.
  // K must be a multiple of 128. The gradient passes through the rounding unchanged.
  bool fp8_gate_up = false;
};

// Same as linear() (autograd/ops.h), with FP8 operands in all three GEMMs. Saves the transposed FP8 copy of the input
// for the backward, or, if x is recomputed anyway, recomputes the copy from x. The result and the gradient of x have
// the type of x. Without bias and residual, the backward reads the output's gradient in FP8 if the op that computes it
// can write FP8 (DeferredGradient).
Var fp8_linear(Run&, const Var& x, const Var& w, const Var& b, const Var& residual, const Fp8Linear&);

}  // namespace ring
