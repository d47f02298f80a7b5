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

// A gradient that the kernel overwrites: in the input's slot if nothing was written there yet, else beside it.
class Overwritten {
 public:
  Overwritten(const Backward& back, const SlotPtr& input, const Tensor& like, Tensor& gradient)
      : input_(input), gradient_(gradient), direct_(input && !input->written) {
    gradient = direct_ ? back.sink(input, like.shape(), like.dtype()).dst : back.ctx.empty(like.shape(), like.dtype());
  }
  // A gradient that is held twice would be copied before it is added to.
  void release() const {
    if (direct_) gradient_ = {};
  }
  void add(const Backward& back) const {
    if (!direct_) back.accumulate(input_, gradient_);
  }

 private:
  const SlotPtr& input_;
  Tensor& gradient_;
  const bool direct_;
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
    const Overwritten gradients[] = {
        {back, inputs.q, args.q, args.dq}, {back, inputs.k, args.k, args.dk}, {back, inputs.v, args.v, args.dv}};
    attend_backward(args, sequences, cp, back.ctx);
    for (const Overwritten& g : gradients) g.release();
    for (const Overwritten& g : gradients) g.add(back);
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
