#include "kernels/rope.h"

#include "autograd/ops.h"

namespace ring {

Var rope(Run& run, const Var& x, const Tensor& positions, const Tensor& inv_freq) {
  const Tensor& in = x.value;
  RING_CHECK(in.shape().size() == 3 && in.dim(2) % 2 == 0 && positions.numel() == in.dim(0) &&
                 inv_freq.numel() == in.dim(2) / 2,
             "rope: input ", describe(in), ", positions ", describe(positions), ", inv_freq ", describe(inv_freq),
             ": expected [N,H,D], [N], [D/2]");
  const Tensor y = run.ctx.empty(in.shape(), in.dtype());
  rope_kernel({.x = in, .out = y, .positions = positions, .inv_freq = inv_freq}, run.ctx);
  if (!run.tape) return {y, nullptr};
  const std::vector<Saved> saved{save_in_place(positions), save_in_place(inv_freq)};
  return run.record("rope", y, {x.slot}, saved, [shape = in.shape()](Backward& back) {
    if (!back.needs_grad(0)) return;
    const Sink s = back.sink(0, shape, back.grad().dtype());
    rope_kernel({.x = back.grad().view(shape),
                 .out = s.dst,
                 .positions = back.saved(0),
                 .inv_freq = back.saved(1),
                 .inverse = true,
                 .beta = s.beta},
                back.ctx);
  });
}

}  // namespace ring
