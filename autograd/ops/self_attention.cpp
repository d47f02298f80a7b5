#include "autograd/ops.h"
#include "kernels/attention/attention.h"
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

// What the backward needs of the forward.
struct State {
  Parts raw, final;  // before and after norm and rotation; the same bytes when there is no norm
  Tensor q_rstd, k_rstd, out, lse;
};

Tensor normalise(const Tensor& x, const Tensor& w, float eps, Tensor& rstd, const Context& ctx) {
  const Tensor y = ctx.empty(x.shape());
  rstd = ctx.empty({x.dim(0) * x.dim(1)});
  rms_norm_kernel({x, w, y, rstd, eps}, ctx);
  return y;
}

void rotate(const Parts& p, const Tensor& positions, const Tensor& inv_freq, bool inverse, const Context& ctx) {
  if (!inv_freq.defined()) return;
  for (const Tensor& t : {p.q, p.k})
    rope_kernel({.x = t, .out = t, .positions = positions, .inv_freq = inv_freq, .inverse = inverse}, ctx);
}

State forward(const Context& ctx, const Tensor& qkv, const Sequences& sequences, const SelfAttention& o) {
  State s;
  s.raw = s.final = split(qkv, o);
  if (o.q_norm.value.defined()) {
    s.final.q = normalise(s.raw.q, o.q_norm.value, o.norm_eps, s.q_rstd, ctx);
    s.final.k = normalise(s.raw.k, o.k_norm.value, o.norm_eps, s.k_rstd, ctx);
  }
  rotate(s.final, sequences.positions, o.inv_freq, false, ctx);
  s.out = ctx.empty({qkv.dim(0), o.heads, o.head_dim});
  s.lse = ctx.empty({o.heads, qkv.dim(0)});
  attention_kernel(
      {s.final.q, s.final.k, s.final.v, s.out, s.lse, sequences.offsets, o.attention.scale, o.attention.causal}, ctx);
  return s;
}

// dx replaces dy, in place; dw goes to the sink of `input`, if wanted.
void norm_rule(Backward& back, int input, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dy) {
  RmsNormBackward args{.x = x, .w = w, .rstd = rstd, .dy = dy, .dx = dy};
  if (back.wants(input)) {
    const Sink s = back.sink(input, w.shape());
    args.dw = s.dst;
    args.beta_w = s.beta;
  }
  rms_norm_backward_kernel(args, back.ctx);
}

struct Rule {
  SelfAttention options;
  Sequences sequences;
  State state;
  Shape shape;  // of qkv

  // The gradients of q, k and v are views of one matrix: the gradient of qkv where nothing was written to it yet.
  void operator()(Backward& back) const {
    const SelfAttention& o = options;
    const bool direct = back.wants(0) && !back.input(0)->written;
    const Tensor dqkv = direct ? back.sink(0, shape).dst : back.ctx.empty(shape);
    const Parts d = split(dqkv, o);
    attention_backward_kernel({.q = state.final.q,
                               .k = state.final.k,
                               .v = state.final.v,
                               .out = state.out,
                               .lse = state.lse,
                               .dout = back.grad().view(state.out.shape()),
                               .dq = d.q,
                               .dk = d.k,
                               .dv = d.v,
                               .offsets = sequences.offsets,
                               .scale = o.attention.scale,
                               .causal = o.attention.causal},
                              back.ctx);
    rotate(d, sequences.positions, o.inv_freq, true, back.ctx);
    if (o.q_norm.value.defined()) {
      norm_rule(back, 1, state.raw.q, o.q_norm.value, state.q_rstd, d.q);
      norm_rule(back, 2, state.raw.k, o.k_norm.value, state.k_rstd, d.k);
    }
    if (back.wants(0) && !direct) back.give(0, dqkv);
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
  State state = forward(run.ctx, qkv.value, sequences, options);
  if (options.keys) {
    *options.keys = state.final.k;
    *options.values = state.final.v;
  }
  const Tensor y = state.out.view({qkv.value.dim(0), options.heads * options.head_dim});
  if (!run.tape) return {y, nullptr};
  Rule rule{options, sequences, std::move(state), qkv.value.shape()};
  rule.options.keys = rule.options.values = nullptr;  // the caller's, and only as long as this call
  return run.tape->record("self_attention", y, {qkv.slot, options.q_norm.slot, options.k_norm.slot}, std::move(rule));
}

}  // namespace ring
