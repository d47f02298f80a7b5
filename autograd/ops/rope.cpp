#include "kernels/rope.h"

#include <algorithm>

#include "autograd/ops.h"

namespace ring {
namespace {

struct Rotation {
  Saved positions, inv_freq;
};

}  // namespace

Var rope(Run& run, const Var& x, const Tensor& positions, const Tensor& inv_freq) {
  const Tensor& in = x.value;
  RING_CHECK(in.shape().size() == 3 && in.dim(2) % 2 == 0 && positions.numel() == in.dim(0) &&
                 inv_freq.numel() == in.dim(2) / 2,
             "rope: input ", describe(in), ", positions ", describe(positions), ", inv_freq ", describe(inv_freq),
             ": expected [N,H,D], [N], [D/2]");
  const Tensor y = run.ctx.empty(in.shape(), in.dtype());
  rope_kernel({.x = in, .out = y, .positions = positions, .inv_freq = inv_freq}, run.ctx);
  if (!run.records(x)) return {y, nullptr};
  const Rotation saved{save_in_place(positions), save_in_place(inv_freq)};
  const auto rule = [shape = in.shape()](const Backward& back, const SlotPtr& input, const Rotation& kept) {
    const Sink s = back.sink(input, shape, back.grad().dtype());
    rope_kernel({.x = back.grad().view(shape),
                 .out = s.dst,
                 .positions = kept.positions.get(back.ctx),
                 .inv_freq = kept.inv_freq.get(back.ctx),
                 .inverse = true,
                 .beta = s.beta},
                back.ctx);
  };
  return run.record("rope", y, x.slot, saved, rule);
}

void rotate(const Tensor& heads, const Sequences& s, const Tensor& inv_freq, const ExecContext& ctx) {
  const Tensor& frequencies = s.inv_freq.defined() ? s.inv_freq : inv_freq;
  const Tensor x = heads.narrow(2, 0, std::min(heads.dim(2), 2 * frequencies.dim(-1)));
  if (!s.inv_freq.defined()) return rope_kernel({x, x, s.positions, inv_freq}, ctx);
  RING_CHECK(s.inv_freq.shape() == (Shape{std::ssize(s.offsets) - 1, x.dim(2) / 2}), "rotate: frequencies are ",
             describe(s.inv_freq), " for ", s.offsets.size() - 1, " documents and heads of ", x.dim(2), " channels");
  for (std::size_t b = 0; b + 1 < s.offsets.size(); ++b) {
    const std::int64_t first = s.offsets[b], rows = s.offsets[b + 1] - first;
    const Tensor part = x.narrow(0, first, rows);
    const Tensor own = s.inv_freq.narrow(0, static_cast<std::int64_t>(b), 1).view({x.dim(2) / 2});
    if (rows > 0) rope_kernel({part, part, s.positions.narrow(0, first, rows), own}, ctx);
  }
}

}  // namespace ring
