#include "kernels/linear_attention/gated_norm.h"

#include "autograd/linear_attention.h"

namespace ring {
namespace {

template <class T>
struct GatedNormInputs {
  T x, z, w;
};

}  // namespace

Var gated_norm(Run& run, const Var& x, const Var& z, const Var& w, float eps) {
  const Shape shape = x.value.shape();
  RING_CHECK(shape.size() == 3 && z.value.shape() == (Shape{shape[0], shape[1] * shape[2]}) &&
                 w.value.shape() == Shape{shape[2]},
             "gated_norm: x is ", describe(x.value), ", z is ", describe(z.value), ", w is ", describe(w.value),
             ", expected [N,H,D], [N,H D] and [D]");
  const auto forward = [eps](const ExecContext& ctx, const GatedNormInputs<Tensor>& in) {
    const Tensor y = ctx.empty(in.z.shape(), in.x.dtype());
    gated_norm_kernel({in.x, in.z, in.w, y, eps}, ctx);
    return y;
  };
  const auto rule = [eps](const Backward& back, const GatedNormInputs<SlotPtr>& slots,
                          const GatedNormInputs<Saved>& saved) {
    const auto [x, z, w] = get_all(saved, back.ctx);
    const Sink dx = back.sink(slots.x, x.shape(), x.dtype()), dz = back.sink(slots.z, z.shape(), z.dtype()),
               dw = back.sink(slots.w, w.shape(), w.dtype());
    gated_norm_backward_kernel({x, z, w, back.grad(), dx.dst, dz.dst, dw.dst, dx.beta, dz.beta, dw.beta, eps},
                               back.ctx);
  };
  const auto keep = [](const Run& r, const GatedNormInputs<Var>& in) {
    return GatedNormInputs<Saved>{r.save(in.x), r.save(in.z), r.save(in.w)};
  };
  return run.op("gated_norm", GatedNormInputs<Var>{x, z, w}, forward, rule, keep);
}

}  // namespace ring
