#include "autograd/ops.h"
#include "autograd/ops/attend.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace ring {
namespace {

// The three column ranges of a qkv matrix, as [N,H,D].
struct Parts {
  Tensor q, k, v;
};

Parts split(const Tensor& qkv, const SelfAttention& o) {
  const std::int64_t q = o.heads * o.head_dim, k = o.kv_heads * o.head_dim;
  const auto part = [&](std::int64_t first, std::int64_t width) {
    return qkv.narrow(1, first, width).split_dim(1, o.head_dim);
  };
  return {part(0, q), part(q, k), part(q + k, k)};
}

// A qkv matrix before and after norm and rotation: the same bytes when there is no norm.
struct Prepared {
  Parts raw, final;
  Tensor q_rstd, k_rstd;
};

Tensor normalise(const Tensor& x, const Tensor& w, float eps, Tensor& rstd, const ExecContext& ctx) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  rstd = ctx.empty({x.dim(0) * x.dim(1)});
  rms_norm_kernel({x, w, y, rstd, eps}, ctx);
  return y;
}

void rotate(const Tensor& t, const Tensor& positions, const SelfAttention& o, bool inverse, const ExecContext& ctx) {
  rope_kernel({.x = t, .out = t, .positions = positions, .inv_freq = o.inv_freq, .inverse = inverse}, ctx);
}

// q and k of one matrix lie side by side: they are rotated as one range of heads.
void rotate_both(const Tensor& qkv, const Tensor& positions, const SelfAttention& o, bool inverse,
                 const ExecContext& ctx) {
  if (!o.inv_freq.defined()) return;
  const Tensor heads = qkv.narrow(1, 0, (o.heads + o.kv_heads) * o.head_dim).split_dim(1, o.head_dim);
  rotate(heads, positions, o, inverse, ctx);
}

Prepared prepare(const ExecContext& ctx, const Tensor& qkv, const Sequences& sequences, const SelfAttention& o) {
  Prepared p;
  p.raw = p.final = split(qkv, o);
  if (!o.q_norm.value.defined()) {
    rotate_both(qkv, sequences.positions, o, false, ctx);
    return p;
  }
  p.final.q = normalise(p.raw.q, o.q_norm.value, o.norm_eps, p.q_rstd, ctx);
  p.final.k = normalise(p.raw.k, o.k_norm.value, o.norm_eps, p.k_rstd, ctx);
  if (o.inv_freq.defined())
    for (const Tensor& t : {p.final.q, p.final.k}) rotate(t, sequences.positions, o, false, ctx);
  return p;
}

// dx replaces dy, in place; dw goes to the sink of `input`, if wanted.
void norm_rule(Backward& back, int input, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dy) {
  RmsNormBackward args{.x = x, .w = w, .rstd = rstd, .dy = dy, .dx = dy};
  if (back.needs_grad(input)) {
    const Sink s = back.sink(input, w.shape(), w.dtype());
    args.dw = s.dst;
    args.beta_w = s.beta;
  }
  rms_norm_backward_kernel(args, back.ctx);
}

// Keeps output and log-sum-exp always; q, k and v as they were prepared, or the way to prepare them again.
struct Rule {
  SelfAttention options;
  Sequences sequences;
  Tensor out, lse;
  Prepared prepared;
  Saved qkv;  // where q, k and v are recomputed
  bool recompute;
  Shape shape;  // of qkv
  DType dtype;
  ContextExchange* cp;

  // The gradients of q, k and v are views of one matrix: the gradient of qkv where nothing was written to it yet.
  void operator()(Backward& back) const {
    const SelfAttention& o = options;
    const Prepared p = recompute ? prepare(back.ctx, qkv.get(back.ctx), sequences, o) : prepared;
    const bool direct = back.needs_grad(0) && !back.input(0)->written;
    const Tensor dqkv = direct ? back.sink(0, shape, dtype).dst : back.ctx.empty(shape, dtype);
    const Parts d = split(dqkv, o);
    attend_backward({.q = p.final.q,
                     .k = p.final.k,
                     .v = p.final.v,
                     .out = out,
                     .lse = lse,
                     .dout = back.grad().view(out.shape()),
                     .dq = d.q,
                     .dk = d.k,
                     .dv = d.v,
                     .scale = o.attention.scale,
                     .pattern = o.attention.pattern},
                    sequences, cp, back.ctx);
    rotate_both(dqkv, sequences.positions, o, true, back.ctx);
    if (o.q_norm.value.defined()) {
      norm_rule(back, 1, p.raw.q, o.q_norm.value, p.q_rstd, d.q);
      norm_rule(back, 2, p.raw.k, o.k_norm.value, p.k_rstd, d.k);
    }
    if (back.needs_grad(0) && !direct) back.accumulate(0, dqkv);
  }
};

void check(const Tensor& qkv, const Sequences& sequences, const SelfAttention& o) {
  RING_CHECK(o.heads > 0 && o.kv_heads > 0 && o.head_dim > 0, "self_attention: ", o.heads, " heads, ", o.kv_heads,
             " KV heads, head dim ", o.head_dim);
  const std::int64_t width = (o.heads + 2 * o.kv_heads) * o.head_dim;
  RING_CHECK(qkv.shape().size() == 2 && qkv.dim(1) == width, "self_attention: qkv is ", describe(qkv), ", but ",
             o.heads, " + 2 x ", o.kv_heads, " heads of ", o.head_dim, " make ", width, " columns");
  RING_CHECK(qkv.dim(0) == sequences.tokens(), "self_attention: ", qkv.dim(0), " tokens, sequences of ",
             sequences.tokens());
  RING_CHECK(o.q_norm.value.defined() == o.k_norm.value.defined(), "self_attention: q_norm and k_norm go together");
  RING_CHECK((o.keys == nullptr) == (o.values == nullptr), "self_attention: keys and values go together");
}

}  // namespace

Var self_attention(Run& run, const Var& qkv, const Sequences& sequences, const SelfAttention& options) {
  check(qkv.value, sequences, options);
  const Tensor& in = qkv.value;
  Prepared p = prepare(run.ctx, in, sequences, options);
  const Tensor out = run.ctx.empty({in.dim(0), options.heads, options.head_dim}, in.dtype());
  const Tensor lse = run.ctx.empty({options.heads, in.dim(0)});
  attend({p.final.q, p.final.k, p.final.v, out, lse, {}, {}, options.attention.scale, options.attention.pattern, {}},
         sequences, run.cp, run.ctx);
  if (options.keys) {
    *options.keys = p.final.k;
    *options.values = p.final.v;
  }
  const Tensor y = out.view({in.dim(0), options.heads * options.head_dim});
  if (!run.tape) return {y, nullptr};
  const bool again = qkv.recipe != nullptr;
  Rule rule{options,    sequences, out,        lse,        again ? Prepared{} : std::move(p),
            Saved(qkv), again,     in.shape(), in.dtype(), run.cp};
  rule.options.keys = rule.options.values = nullptr;  // the caller's, and only as long as this call
  return run.record("self_attention", y, {qkv.slot, options.q_norm.slot, options.k_norm.slot}, std::move(rule));
}

}  // namespace ring
