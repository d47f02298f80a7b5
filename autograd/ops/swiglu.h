#pragma once
#include "autograd/tape.h"

namespace ring {

// Returns the gradient of gate_up [N,2F] for the gradient dy [N,F] of swiglu(gate_up).
DeferredGradient swiglu_gradient(const Tensor& gate_up, const Tensor& dy);

}  // namespace ring
