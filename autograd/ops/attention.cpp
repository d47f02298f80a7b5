#include "autograd/ops.h"
#include "autograd/ops/attend.h"

namespace ring {
namespace {

struct Inputs {
  SlotPtr q, k, v;
};

struct ForBackward {
  Saved q, k, v, out, lse;
  Saved dropout_rows, dropout_state, selection;
};

// Gradients of all three inputs, which may share slots.
struct AttentionRule {
  static constexpr bool kKeepsNoTensor = true;
  AttentionOptions options;
  DropoutAddress dropout;
  Sequences sequences;  // without positions
  ContextExchange* cp;

  AttentionBackward arguments(const Backward& back, const ForBackward& saved) const {
    const ExecContext& ctx = back.ctx;
    const Tensor out = saved.out.get(ctx);
    return {.q = saved.q.get(ctx),
            .k = saved.k.get(ctx),
            .v = saved.v.get(ctx),
            .out = out,
            .lse = saved.lse.get(ctx),
            .dout = back.grad().view(out.shape()),
            .scale = options.scale,
            .pattern = options.pattern,
            .dropout = dropout.with(saved.dropout_rows.get(ctx), saved.dropout_state.get(ctx)),
            .selection = {saved.selection.get(ctx)}};
  }

  void operator()(const Backward& back, const Inputs& inputs, const ForBackward& saved) const {
    AttentionBackward args = arguments(back, saved);
    // The kernel overwrites: a gradient goes to its slot if nothing was written there yet, else beside it.
    struct Gradient {
      const SlotPtr& slot;
      Tensor& value;
      const Tensor& like;
      bool direct = false;
    };
    Gradient all[] = {{inputs.q, args.dq, args.q}, {inputs.k, args.dk, args.k}, {inputs.v, args.dv, args.v}};
    for (Gradient& g : all) {
      g.direct = g.slot && !g.slot->written;
      g.value = g.direct ? back.sink(g.slot, g.like.shape(), g.like.dtype()).dst
                         : back.ctx.empty(g.like.shape(), g.like.dtype());
    }
    attend_backward(args, sequences, cp, back.ctx);
    for (const Gradient& g : all)
      if (g.direct) g.value = {};  // a gradient that is held twice would be copied before it is added to
    for (const Gradient& g : all)
      if (!g.direct) back.accumulate(g.slot, g.value);
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
  return run.record("attention", out, Inputs{q.slot, k.slot, v.slot},
                    ForBackward{.q = run.save(q),
                                .k = run.save(k),
                                .v = run.save(v),
                                .out = run.save(out),
                                .lse = run.save(lse),
                                .dropout_rows = save_in_place(run.rows),
                                .dropout_state = save_in_place(run.state),
                                .selection = save_in_place(selection.bits)},
                    AttentionRule{options, dropout, sequences.without_positions(), run.cp});
}

}  // namespace ring
