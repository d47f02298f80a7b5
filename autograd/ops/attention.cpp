#include "autograd/ops.h"
#include "autograd/ops/attend.h"

namespace ring {
namespace {

// The kernel overwrites: it may write to a gradient that nothing was written to yet, else beside it.
bool untouched(const Backward& back, int input) { return back.needs_grad(input) && !back.input(input)->written; }

// Gradients of all three inputs, which may share slots. Saved: q, k, v, out, lse, the rows and the state of
// dropout, and the selection.
struct AttentionRule {
  static constexpr bool kKeepsNoTensor = true;
  AttentionOptions options;
  DropoutAddress dropout;
  Sequences sequences;  // without positions
  ContextExchange* cp;

  AttentionBackward arguments(const Backward& back) const {
    const Tensor out = back.saved(3);
    return {.q = back.saved(0),
            .k = back.saved(1),
            .v = back.saved(2),
            .out = out,
            .lse = back.saved(4),
            .dout = back.grad().view(out.shape()),
            .scale = options.scale,
            .pattern = options.pattern,
            .dropout = dropout.with(back.saved(5), back.saved(6)),
            .selection = {back.saved(7)}};
  }

  void operator()(Backward& back) const {
    AttentionBackward args = arguments(back);
    Tensor* gradients[3] = {&args.dq, &args.dk, &args.dv};
    const Shape shapes[3] = {args.q.shape(), args.k.shape(), args.v.shape()};
    bool direct[3];
    for (int i = 0; i < 3; ++i) {
      direct[i] = untouched(back, i);
      *gradients[i] =
          direct[i] ? back.sink(i, shapes[i], args.q.dtype()).dst : back.ctx.empty(shapes[i], args.q.dtype());
    }
    attend_backward(args, sequences, cp, back.ctx);
    for (int i = 0; i < 3; ++i)
      if (direct[i]) *gradients[i] = {};  // a gradient that is held twice would be copied before it is added to
    for (int i = 0; i < 3; ++i)
      if (back.needs_grad(i) && !direct[i]) back.accumulate(i, *gradients[i]);
  }
};

}  // namespace

Var attention(Run& run, const Var& q, const Var& k, const Var& v, const Sequences& sequences,
              const AttentionOptions& options) {
  const Shape& shape = q.value.shape();
  RING_CHECK(shape.size() == 3, "attention: queries are ", describe(q.value), ", expected [tokens, heads, head dim]");
  const Tensor out = run.ctx.empty(shape, q.value.dtype()), lse = run.ctx.empty({shape[1], shape[0]});
  const DropoutAddress dropout = dropout_address(run, options, shape[1]);
  const BlockSelection selection = attend(Attention{.q = q.value,
                                                    .k = k.value,
                                                    .v = v.value,
                                                    .out = out,
                                                    .lse = lse,
                                                    .scale = options.scale,
                                                    .pattern = options.pattern,
                                                    .dropout = dropout.with(run.rows, run.state)},
                                          sequences, run.cp, run.ctx);
  if (!run.records(q, k, v)) return {out, nullptr};
  return run.record("attention", out, {q.slot, k.slot, v.slot},
                    {run.save(q), run.save(k), run.save(v), run.save(out), run.save(lse), save_in_place(run.rows),
                     save_in_place(run.state), save_in_place(selection.bits)},
                    AttentionRule{options, dropout, sequences.without_positions(), run.cp});
}

}  // namespace ring
