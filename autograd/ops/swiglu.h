#pragma once
#include "autograd/tape.h"
#include "kernels/fp8.h"

namespace ring {

// Returns the gradient of gate_up [N,2F] for the gradient dy [N,F] of swiglu(gate_up). Exactly one of gate_up and
// fp8_gate_up is defined; fp8_gate_up is the matrix in FP8, as in SwiGluBackwardFp8 (kernels/fp8_producers.h).
DeferredGradient swiglu_gradient(const Tensor& gate_up, const Tensor& dy, const Fp8Matrix& fp8_gate_up = {});

}  // namespace ring
