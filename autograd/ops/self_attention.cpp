#include <optional>

#include "autograd/ops.h"
#include "autograd/ops/attend.h"
#include "autograd/ops/kept_share.h"
#include "kernels/attention/entropy.h"
#include "kernels/attention/pool_gate.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace ring {
namespace {

// The three column ranges of a qkv matrix, as [N,H,D].
struct Parts {
  Tensor q, k, v;
};

// How they lie, and what is done to q and k.
struct Layout {
  std::int64_t heads, kv_heads, head_dim;
  float norm_eps;

  Parts split(const Tensor& qkv) const {
    const std::int64_t q = heads * head_dim, k = kv_heads * head_dim;
    const auto part = [&](std::int64_t first, std::int64_t width) {
      return qkv.narrow(1, first, width).split_dim(1, head_dim);
    };
    return {part(0, q), part(q, k), part(q + k, k)};
  }
};

// What rotates and normalises. Undefined: no rotation, no norm.
struct Constants {
  Tensor positions, inv_freq, q_norm, k_norm;
  const Sequences* own = nullptr;  // those that rotate by frequencies of their own
};

// A qkv matrix before and after norm and rotation: the same bytes when there is no norm.
struct Prepared {
  Tensor qkv;
  Tensor q, k, q_rstd, k_rstd;  // undefined where there is no norm

  Parts final(const Layout& layout) const {
    const Parts raw = layout.split(qkv);
    return q.defined() ? Parts{q, k, raw.v} : raw;
  }
};

Tensor normalise(const Tensor& x, const Tensor& w, float eps, Tensor& rstd, const ExecContext& ctx) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  rstd = ctx.empty({x.dim(0) * x.dim(1)});
  rms_norm_kernel({x, w, y, rstd, eps}, ctx);
  return y;
}

void rotate(const Tensor& t, const Constants& c, bool inverse, const ExecContext& ctx) {
  if (c.own) return ring::rotate(t, *c.own, c.inv_freq, ctx);
  rope_kernel({.x = t, .out = t, .positions = c.positions, .inv_freq = c.inv_freq, .inverse = inverse}, ctx);
}

// q and k of one matrix lie side by side: they are rotated as one range of heads.
void rotate_both(const Tensor& qkv, const Constants& c, const Layout& l, bool inverse, const ExecContext& ctx) {
  if (!c.inv_freq.defined()) return;
  const Tensor heads = qkv.narrow(1, 0, (l.heads + l.kv_heads) * l.head_dim).split_dim(1, l.head_dim);
  rotate(heads, c, inverse, ctx);
}

Prepared prepare(const ExecContext& ctx, const Tensor& qkv, const Constants& c, const Layout& layout) {
  Prepared p{.qkv = qkv};
  if (!c.q_norm.defined()) {
    rotate_both(qkv, c, layout, false, ctx);
    return p;
  }
  const Parts raw = layout.split(qkv);
  p.q = normalise(raw.q, c.q_norm, layout.norm_eps, p.q_rstd, ctx);
  p.k = normalise(raw.k, c.k_norm, layout.norm_eps, p.k_rstd, ctx);
  if (c.inv_freq.defined())
    for (const Tensor& t : {p.q, p.k}) rotate(t, c, false, ctx);
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

// The places in the rule's list of what was saved.
enum {
  kPositions,
  kInvFreq,
  kQNorm,
  kKNorm,
  kRows,
  kState,
  kSelection,
  kPooling,
  kPoolGates,
  kOut,
  kLse,
  kQkv,
  kQ,
  kK,
  kQRstd,
  kKRstd
};

// What layers learn of pools: none of it, or one, or both.
struct Learned {
  Tensor pooling, gates;  // gates [N,Hq]
};

// As attention takes them, and the way back.
Tensor by_head(const Tensor& gates, const ExecContext& ctx) {
  if (!gates.defined()) return {};
  const Tensor turned = ctx.empty({gates.dim(1), gates.dim(0)});
  transpose_kernel({gates, turned}, ctx);
  return turned;
}

// What attention makes of prepared queries, keys and values.
struct Attended {
  Tensor out, lse;
  BlockSelection selection{};
};

// All between a qkv matrix and attention's output; the same calls, messages included, in the forward and when it is
// made again.
struct Attend {
  static constexpr bool kKeepsNoTensor = true;
  Layout layout;
  AttentionOptions attention;
  DropoutAddress dropout;
  Sequences sequences;  // without positions
  ContextExchange* cp;

  // What pools have learned, by size; none where it is undefined.
  std::vector<PoolWeights> weights_of(const Tensor& pooling) const {
    if (!pooling.defined()) return {};
    return pool_weights(pooling, attention.pattern, layout.kv_heads, layout.head_dim);
  }
  Attended operator()(const ExecContext& ctx, const Parts& x, const AttentionDropout& masks,
                      const BlockSelection& selection, const Learned& learned, const AttentionWatch& watch = {}) const {
    const std::int64_t rows = x.q.dim(0);
    Attended a{ctx.empty({rows, layout.heads, layout.head_dim}, x.q.dtype()), ctx.empty({layout.heads, rows})};
    a.selection = attend({{.q = x.q,
                           .k = x.k,
                           .v = x.v,
                           .out = a.out,
                           .lse = a.lse,
                           .scale = attention.scale,
                           .pattern = attention.pattern,
                           .dropout = masks,
                           .selection = selection},
                          weights_of(learned.pooling),
                          by_head(learned.gates, ctx)},
                         sequences, cp, ctx, watch);
    return a;
  }
  // From qkv and the constants: all that the rule needs, in its order from kOut on.
  Tensors operator()(const ExecContext& ctx, const Tensors& from) const {
    const Prepared p = prepare(ctx, from[0], {from[1], from[2], from[3], from[4]}, layout);
    const Attended a = (*this)(ctx, p.final(layout), dropout.with(from[5], from[6]), {from[7]}, {from[8], from[9]});
    return {a.out, a.lse, p.qkv, p.q, p.k, p.q_rstd, p.k_rstd};
  }
};

std::vector<Saved> outputs_of(Recipe recipe, int count) {
  const auto shared = std::make_shared<Recipe>(std::move(recipe));
  std::vector<Saved> outputs;
  for (int i = 0; i < count; ++i) outputs.emplace_back(shared, i);
  return outputs;
}

std::vector<Saved> qkv_and(const Run& run, const Var& qkv, const std::vector<Saved>& constants) {
  std::vector<Saved> from{run.save(qkv)};
  from.insert(from.end(), constants.begin(), constants.end());
  return from;
}

// q, k and v as they were prepared, or, where qkv is made again, the way to prepare them again.
std::vector<Saved> save_prepared(const Run& run, const Var& qkv, const Prepared& p, const Layout& layout,
                                 const std::vector<Saved>& constants) {
  if (!qkv.recipe) return {run.save(p.qkv), run.save(p.q), run.save(p.k), run.save(p.q_rstd), run.save(p.k_rstd)};
  const auto again = [layout](const ExecContext& ctx, const Tensors& from) -> Tensors {
    const Prepared made = prepare(ctx, from[0], {from[1], from[2], from[3], from[4]}, layout);
    return {made.qkv, made.q, made.k, made.q_rstd, made.k_rstd};
  };
  return outputs_of({qkv_and(run, qkv, constants), again}, 5);
}

// A qkv matrix that is kept was rotated in place: nothing can be made from it again.
bool attends_again(const Run& run, const Var& qkv) { return run.recompute_attention && qkv.recipe; }

// From kOut on, as the rule needs it.
std::vector<Saved> save_attended(const Run& run, const Var& qkv, const Prepared& p, const Attended& a,
                                 const Attend& forward, const std::vector<Saved>& constants) {
  if (attends_again(run, qkv)) return outputs_of({qkv_and(run, qkv, constants), forward}, 7);
  std::vector<Saved> saved{run.save(a.out), run.save(a.lse)};
  const std::vector<Saved> prepared = save_prepared(run, qkv, p, forward.layout, constants);
  saved.insert(saved.end(), prepared.begin(), prepared.end());
  return saved;
}

// Whether an exchange brings whole sequences together, and can show them where they are.
bool shows_whole(const Attend& forward) {
  if (!forward.sequences.shards) return false;
  const SelectionPart part =
      forward.cp->selection_part(forward.sequences.shards, forward.attention.pattern, forward.layout.kv_heads);
  return part.heads.count > 0 && !part.shared;
}

// Adds what attention keeps, which was computed with these arguments. Whoever shows whole sequences has added it.
void add_kept(KeptSums& kept, Attention a, const Attend& forward) {
  const Sequences& sequences = forward.sequences;
  if (!sequences.shards) {
    a.queries = a.keys = sequences.spans();
    return kept.add(a, {0, a.k.dim(1)});
  }
  if (!shows_whole(forward)) kept.add(a, sequences.shards, *forward.cp);
}

// What watched steps ask of attention, sums over rows, by head: of the entropy, and the number of rows; then of what
// blocks keep. The extra call sees keys in place of values. Nothing is measured for it, so that no choice of the run
// depends on whether it was made.
Tensor watched_sums(ExecContext ctx, const Attend& forward, const Parts& x, const BlockSelection& selection,
                    const Learned& learned) {
  ctx.tuning = nullptr;
  const std::int64_t rows = x.q.dim(0), heads = forward.layout.heads;
  const bool blocks = forward.attention.pattern.blocks != nullptr;
  Attention a{.q = x.q,
              .k = x.k,
              .v = x.k,
              .out = ctx.empty(x.q.shape()),
              .lse = ctx.empty({heads, rows}),
              .scale = forward.attention.scale,
              .pattern = forward.attention.pattern,
              .selection = selection};
  std::optional<KeptSums> kept;
  if (blocks) kept.emplace(heads, forward.layout.kv_heads, ctx);
  const AttentionWatch watch = [&](Attention part, KvHeads of) {
    part.out = ctx.empty(part.out.shape());  // that of the call is still to be sent
    kept->add(part, of);
  };
  PooledAttention pooled(a, forward.weights_of(learned.pooling), by_head(learned.gates, ctx));
  if (learned.pooling.defined()) pooled.scored = x.v;
  if (learned.gates.defined()) pooled.mean_gates = ctx.empty(a.lse.shape());
  attend(pooled, forward.sequences, forward.cp, ctx, blocks && shows_whole(forward) ? watch : nullptr);
  if (learned.gates.defined()) {  // the logarithms of weights have the gates, too
    a.lse = ctx.empty(pooled.lse.shape());
    axpby_kernel({.x = pooled.lse, .y = pooled.mean_gates, .out = a.lse, .alpha = 1, .beta = -1}, ctx);
  }
  const Tensor each = ctx.empty({rows, 2 * heads}), sums = ctx.empty({(blocks ? 4 : 2) * heads + (blocks ? 3 : 0)});
  attention_entropy_kernel({x.q, a.out, a.lse, each, forward.attention.scale}, ctx);
  column_sum_kernel({each, sums.narrow(0, 0, 2 * heads)}, ctx);
  if (!blocks) return sums;
  add_kept(*kept, a, forward);
  kept->store(sums.narrow(0, 2 * heads, 2 * heads + 3));
  return sums;
}

struct Rule {
  static constexpr bool kKeepsNoTensor = true;
  Attend forward;

  // The gradients of q, k and v are views of one matrix: the gradient of qkv where nothing was written to it yet.
  void operator()(Backward& back) const {
    const Constants c{back.saved(kPositions), back.saved(kInvFreq), back.saved(kQNorm), back.saved(kKNorm)};
    const Prepared p{back.saved(kQkv), back.saved(kQ), back.saved(kK), back.saved(kQRstd), back.saved(kKRstd)};
    const bool direct = back.needs_grad(0) && !back.input(0)->written;
    const Shape& shape = p.qkv.shape();
    const Tensor dqkv = direct ? back.sink(0, shape, p.qkv.dtype()).dst : back.ctx.empty(shape, p.qkv.dtype());
    const Parts d = forward.layout.split(dqkv);
    const Tensor pooling = back.saved(kPooling),
                 dpooling = pooling.defined() ? back.ctx.zeros(pooling.shape()) : Tensor{};
    PooledAttentionBackward args(arguments(back, p.final(forward.layout), d), forward.weights_of(pooling),
                                 forward.weights_of(dpooling));
    const Tensor gates = back.saved(kPoolGates);
    if (gates.defined()) args.gates = by_head(gates, back.ctx), args.dgates = back.ctx.empty(args.lse.shape());
    attend_backward(args, forward.sequences, forward.cp, back.ctx);
    if (gates.defined() && back.needs_grad(4)) {
      const Sink s = back.sink(4, gates.shape(), gates.dtype());
      transpose_kernel({args.dgates, s.dst, s.beta}, back.ctx);
    }
    if (pooling.defined() && back.needs_grad(3)) {
      const Sink s = back.sink(3, pooling.shape(), pooling.dtype());
      column_sum_kernel({dpooling.view({1, dpooling.numel()}), s.dst, s.beta}, back.ctx);
    }
    rotate_both(dqkv, c, forward.layout, true, back.ctx);
    if (c.q_norm.defined()) {
      const Parts raw = forward.layout.split(p.qkv);
      norm_rule(back, 1, raw.q, c.q_norm, p.q_rstd, d.q);
      norm_rule(back, 2, raw.k, c.k_norm, p.k_rstd, d.k);
    }
    if (back.needs_grad(0) && !direct) back.accumulate(0, dqkv);
  }

  AttentionBackward arguments(const Backward& back, const Parts& in, const Parts& gradients) const {
    const Tensor out = back.saved(kOut);
    return {.q = in.q,
            .k = in.k,
            .v = in.v,
            .out = out,
            .lse = back.saved(kLse),
            .dout = back.grad().view(out.shape()),
            .dq = gradients.q,
            .dk = gradients.k,
            .dv = gradients.v,
            .scale = forward.attention.scale,
            .pattern = forward.attention.pattern,
            .dropout = forward.dropout.with(back.saved(kRows), back.saved(kState)),
            .selection = {back.saved(kSelection)}};
  }
};

void check(const Run& run, const Tensor& qkv, const Sequences& sequences, const SelfAttention& o) {
  RING_CHECK(o.heads > 0 && o.kv_heads > 0 && o.head_dim > 0, "self_attention: ", o.heads, " heads, ", o.kv_heads,
             " KV heads, head dim ", o.head_dim);
  const std::int64_t width = (o.heads + 2 * o.kv_heads) * o.head_dim;
  RING_CHECK(qkv.shape().size() == 2 && qkv.dim(1) == width, "self_attention: qkv is ", describe(qkv), ", but ",
             o.heads, " + 2 x ", o.kv_heads, " heads of ", o.head_dim, " make ", width, " columns");
  RING_CHECK(qkv.dim(0) == sequences.tokens(), "self_attention: ", qkv.dim(0), " tokens, sequences of ",
             sequences.tokens());
  RING_CHECK(!run.tape || !sequences.inv_freq.defined(),
             "self_attention: no backward through frequencies of each "
             "document");
  RING_CHECK(o.q_norm.value.defined() == o.k_norm.value.defined(), "self_attention: q_norm and k_norm go together");
  RING_CHECK((!o.pooling.value.defined() && !o.pool_gates.value.defined()) || !o.attention.pattern.pools.empty(),
             "self_attention: weights or gates of pools, of which the pattern has none");
  RING_CHECK(!o.pool_gates.value.defined() || o.pool_gates.value.shape() == Shape({qkv.dim(0), o.heads}),
             "self_attention: gates of pools ", describe(o.pool_gates.value), ", expected one for each of ", qkv.dim(0),
             " tokens and ", o.heads, " heads");
  RING_CHECK((o.keys == nullptr) == (o.values == nullptr), "self_attention: keys and values go together");
}

}  // namespace

Var self_attention(Run& run, const Var& qkv, const Sequences& sequences, const SelfAttention& options) {
  check(run, qkv.value, sequences, options);
  const Tensor& in = qkv.value;
  const Layout layout{options.heads, options.kv_heads, options.head_dim, options.norm_eps};
  const Prepared p = prepare(run.ctx, in,
                             {sequences.positions, options.inv_freq, options.q_norm.value, options.k_norm.value,
                              sequences.inv_freq.defined() ? &sequences : nullptr},
                             layout);
  const DropoutAddress dropout = dropout_address(run, options.attention, options.heads);
  const Attend forward{layout, options.attention, dropout, sequences.without_positions(), run.cp};
  const Parts x = p.final(layout);
  const BlockSelection given = options.selection ? *options.selection : BlockSelection{};
  const Attended a = forward(run.ctx, x, dropout.with(run.rows, run.state), given,
                             {options.pooling.value, options.pool_gates.value}, options.watch);
  if (run.entropies)
    run.entropies->push_back(
        watched_sums(run.ctx, forward, x, a.selection, {options.pooling.value, options.pool_gates.value}));
  if (options.keys) {
    *options.keys = x.k;
    *options.values = x.v;
  }
  if (options.queries) *options.queries = x.q;
  if (options.selection) *options.selection = a.selection;
  const Shape shape{in.dim(0), options.heads * options.head_dim};
  if (!run.records(qkv, options.q_norm, options.k_norm, options.pooling, options.pool_gates))
    return {a.out.view(shape), nullptr};
  std::vector<Saved> saved{
      save_in_place(sequences.positions), save_in_place(options.inv_freq), run.save(options.q_norm),
      run.save(options.k_norm),           save_in_place(run.rows),         save_in_place(run.state),
      save_in_place(a.selection.bits),    run.save(options.pooling),       run.save(options.pool_gates)};
  const std::vector<Saved> attended = save_attended(run, qkv, p, a, forward, saved);
  saved.insert(saved.end(), attended.begin(), attended.end());
  const Var y =
      run.record("self_attention", a.out.view(shape),
                 {qkv.slot, options.q_norm.slot, options.k_norm.slot, options.pooling.slot, options.pool_gates.slot},
                 std::move(saved), Rule{forward});
  if (!attends_again(run, qkv)) return y;
  return recomputable(y, {attended[0]},
                      [shape](const ExecContext&, const Tensors& from) { return from[0].view(shape); });
}

}  // namespace ring
