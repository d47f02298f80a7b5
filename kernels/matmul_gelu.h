#pragma once
// Matmul with GELU (gelu_input, gelu_gradient_at) as two kernels, for libraries that cannot fuse them.

#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace ring {

// Returns gelu_input or gelu_gradient_at, whichever is defined; an undefined tensor if neither is.
inline const Tensor& gelu_operand(const Matmul& m) {
  return m.gelu_input.defined() ? m.gelu_input : m.gelu_gradient_at;
}
inline bool has_gelu(const Matmul& m) { return gelu_operand(m).defined(); }

// Throws Error if the arguments violate the requirements of GELU (matmul.h).
inline void check_gelu(const Matmul& m) {
  if (!has_gelu(m)) return;
  const Tensor &at = gelu_operand(m), &c = m.c;
  RING_CHECK(at.shape() == c.shape() && at.dtype() == c.dtype() && at.is_contiguous() && c.is_contiguous(),
             "matmul: ", describe(c), " activated at ", describe(at),
             ": both must be contiguous, of one shape and type");
  const bool alone = !m.residual.defined() && m.beta == 0;
  RING_CHECK(alone && (m.gelu_input.defined() ? !m.gelu_gradient_at.defined() : !m.bias.defined()),
             "matmul: an activation requires beta = 0 and no residual, its gradient also no bias; got beta ", m.beta);
}

// Computes a Matmul with or without GELU. product(args, ctx) must compute a Matmul without GELU.
template <class Product>
void product_then_gelu(const Matmul& args, const ExecContext& ctx, const Product& product) {
  check_gelu(args);
  ExecContext inside = ctx;
  inside.observer = nullptr;  // observers see one Matmul, not its parts
  Matmul plain = args;
  plain.gelu_input = plain.gelu_gradient_at = {};
  constexpr Activation kind = Activation::gelu_tanh;
  if (args.gelu_input.defined()) {
    plain.c = args.gelu_input;
    product(plain, inside);
    activate_kernel({.x = plain.c, .y = args.c, .kind = kind}, inside);
  } else {
    product(plain, inside);
    activate_backward_kernel({.x = args.gelu_gradient_at, .dy = args.c, .dx = args.c, .kind = kind}, inside);
  }
}

}  // namespace ring
