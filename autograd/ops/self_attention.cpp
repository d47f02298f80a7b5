#include <optional>

#include "autograd/ops.h"
#include "autograd/ops/attend.h"
#include "autograd/pools/pool_inputs.h"
#include "autograd/selected/attention_recall.h"
#include "kernels/attention/entropy.h"
#include "kernels/attention/sink.h"
#include "kernels/elementwise.h"
#include "kernels/fp8_producers.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace ring {
namespace {

// The three column ranges of a qkv matrix, as [N,H,D].
struct Parts {
  Tensor q, k, v;
};

// Column layout of a qkv matrix, and constants of the QK-norm.
struct Layout {
  std::int64_t heads, kv_heads, head_dim;
  float norm_eps, norm_offset;

  Parts split(const Tensor& qkv) const { return split(qkv, head_dim, head_dim); }
  // Returns q and k shaped as the rows that the QK-norm normalizes: [N,H,D] if its weights are per head, [N,1,H D] if
  // they cover all heads.
  Parts norm_rows(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm) const {
    return split(qkv, q_norm.numel(), k_norm.numel());
  }

 private:
  Parts split(const Tensor& qkv, std::int64_t q_dim, std::int64_t k_dim) const {
    const std::int64_t q = heads * head_dim, k = kv_heads * head_dim;
    const auto part = [&](std::int64_t first, std::int64_t width, std::int64_t dim) {
      return qkv.narrow(1, first, width).split_dim(1, dim);
    };
    return {part(0, q, q_dim), part(q, k, k_dim), part(q + k, k, head_dim)};
  }
};

// Inputs of rotation and QK-norm, undefined if there is no rotation or no QK-norm.
template <class T>
struct Constants {
  T positions, inv_freq, q_norm, k_norm;
  const Sequences* own = nullptr;  // set if the sequences have their own frequencies
};

// All inputs of attention besides qkv.
template <class T>
struct Arguments {
  Constants<T> constants;
  T rows, state;  // tensors that the dropout mask depends on
  T selection;
  PoolInputs<T> pools;
  T sinks;
};

template <class T>
struct QkvAndArguments {
  T qkv;
  Arguments<T> arguments;
};

// A qkv matrix before and after norm and rotation: the same memory if there is no norm.
template <class T>
struct Prepared {
  T qkv;
  T q, k, q_rstd, k_rstd;  // undefined if there is no norm
};

Parts final_parts(const Prepared<Tensor>& p, const Layout& layout) {
  const Parts raw = layout.split(p.qkv);
  return p.q.defined() ? Parts{p.q, p.k, raw.v} : raw;
}

// Results of the forward that backward needs.
template <class T>
struct Computed {
  T out, lse;
  Prepared<T> prepared;
};

struct AttentionForBackward {
  Arguments<Saved> arguments;
  Computed<Saved> computed;
};

struct AttentionInputs {
  SlotPtr qkv, q_norm, k_norm;
  PoolInputs<SlotPtr> pools;
  SlotPtr sinks;
};

// Normalizes x, which norm_rows() has shaped, and returns the result as [N,H,D].
Tensor normalise(const Tensor& x, const Tensor& w, const Layout& l, Tensor& rstd, const ExecContext& ctx) {
  const Tensor y = ctx.empty(x.shape(), x.dtype());
  rstd = ctx.empty({x.dim(0) * x.dim(1)});
  rms_norm_kernel({x, w, y, rstd, l.norm_eps, l.norm_offset}, ctx);
  return y.view({x.dim(0), -1, l.head_dim});
}

void rotate(const Tensor& heads, const Constants<Tensor>& c, bool inverse, const ExecContext& ctx) {
  if (c.own) return ring::rotate(heads, *c.own, c.inv_freq, ctx);
  const Tensor t = heads.narrow(2, 0, 2 * c.inv_freq.numel());
  rope_kernel({.x = t, .out = t, .positions = c.positions, .inv_freq = c.inv_freq, .inverse = inverse}, ctx);
}

// Rotates q and k in one call: their heads are adjacent columns of qkv.
void rotate_both(const Tensor& qkv, const Constants<Tensor>& c, const Layout& l, bool inverse, const ExecContext& ctx) {
  if (!c.inv_freq.defined()) return;
  const Tensor heads = qkv.narrow(1, 0, (l.heads + l.kv_heads) * l.head_dim).split_dim(1, l.head_dim);
  rotate(heads, c, inverse, ctx);
}

// Returns the gradient of qkv before the rotation, given dqkv, the gradient after it. May overwrite dqkv.
DeferredGradient rotated_back(const Tensor& dqkv, const Constants<Tensor>& c, const Layout& l) {
  const auto compute = [=](const ExecContext& ctx, const Tensor& to) {
    copy(to, dqkv, ctx.stream);
    rotate_both(to, c, l, true, ctx);
  };
  const auto quantize = [=](const ExecContext& ctx, const Fp8Matrix& out, const Fp8Matrix& transposed,
                            const Fp8Max& max) {
    if (!max.value.defined() && 2 * c.inv_freq.numel() == l.head_dim)
      return rope_fp8_kernel({dqkv, c.positions, c.inv_freq, l.heads + l.kv_heads, true, out, transposed}, ctx);
    if (!max.given) rotate_both(dqkv, c, l, true, ctx);  // tensorwise scales: a separate kernel for rotation is faster
    quantize_fp8_kernel({dqkv, out, transposed, max}, ctx);
  };
  return {dqkv.shape(), dqkv.dtype(), compute, quantize};
}

Prepared<Tensor> prepare(const ExecContext& ctx, const Tensor& qkv, const Constants<Tensor>& c, const Layout& layout) {
  Prepared<Tensor> p{.qkv = qkv};
  if (!c.q_norm.defined()) {
    rotate_both(qkv, c, layout, false, ctx);
    return p;
  }
  const Parts raw = layout.norm_rows(qkv, c.q_norm, c.k_norm);
  p.q = normalise(raw.q, c.q_norm, layout, p.q_rstd, ctx);
  p.k = normalise(raw.k, c.k_norm, layout, p.k_rstd, ctx);
  if (c.inv_freq.defined())
    for (const Tensor& t : {p.q, p.k}) rotate(t, c, false, ctx);
  return p;
}

// Computes the norm's backward: dx replaces dy in place; dw goes to `weight`, if wanted.
void norm_rule(const Backward& back, const SlotPtr& weight, const Tensor& x, const Tensor& w, const Tensor& rstd,
               const Tensor& dy, float w_offset) {
  RmsNormBackward args{.x = x, .w = w, .rstd = rstd, .dy = dy, .dx = dy, .w_offset = w_offset};
  const Sink dw = back.sink(weight, w.shape(), w.dtype());
  args.dw = dw.dst;
  args.beta_w = dw.beta;
  rms_norm_backward_kernel(args, back.ctx);
}

// Results of attention.
struct Attended {
  Tensor out, lse;
  BlockSelection selection{};
};

// Computes attention from a qkv matrix; makes the same calls, including messages, in the forward and when recomputed.
struct Attend {
  static constexpr bool kKeepsNoTensor = true;
  Layout layout;
  AttentionOptions attention;
  DropoutAddress dropout;
  Sequences sequences;  // sequences without positions
  ContextExchange* cp;

  Attended operator()(const ExecContext& ctx, const Parts& x, const AttentionDropout& masks,
                      const BlockSelection& selection, const PoolInputs<Tensor>& pools, const Tensor& sinks,
                      const AttentionWatch& watch = {}) const {
    const std::int64_t rows = x.q.dim(0);
    Attended a{ctx.empty({rows, layout.heads, layout.head_dim}, x.q.dtype()), ctx.empty({layout.heads, rows})};
    const Attention pairs{.q = x.q,
                          .k = x.k,
                          .v = x.v,
                          .out = a.out,
                          .lse = a.lse,
                          .scale = attention.scale,
                          .pattern = attention.pattern,
                          .dropout = masks,
                          .selection = selection,
                          .soft_cap = attention.soft_cap};
    a.selection = attend(with_pools(pairs, pools, ctx), sequences, cp, ctx, watch);
    if (sinks.defined()) attention_sink_kernel({a.out, a.lse, sinks}, ctx);
    return a;
  }
  // Recomputes everything that backward needs.
  Computed<Tensor> operator()(const ExecContext& ctx, const QkvAndArguments<Tensor>& from) const {
    const Arguments<Tensor>& args = from.arguments;
    const Prepared<Tensor> p = prepare(ctx, from.qkv, args.constants, layout);
    const Attended a = (*this)(ctx, final_parts(p, layout), dropout.with(args.rows, args.state), {args.selection},
                               args.pools, args.sinks);
    return {a.out, a.lse, p};
  }
};

// Saves the prepared q, k and v, or, if qkv is recomputed, a recipe that prepares them again.
Prepared<Saved> save_prepared(const Run& run, const Var& qkv, const Prepared<Tensor>& p, const Layout& layout,
                              const Arguments<Saved>& arguments) {
  if (!qkv.recipe) return {run.save(p.qkv), run.save(p.q), run.save(p.k), run.save(p.q_rstd), run.save(p.k_rstd)};
  return save_to_recompute(QkvAndArguments<Saved>{run.save(qkv), arguments},
                           [layout](const ExecContext& ctx, const QkvAndArguments<Tensor>& from) {
                             return prepare(ctx, from.qkv, from.arguments.constants, layout);
                           });
}

// Returns true if backward recomputes attention. A saved qkv matrix was rotated in place, so nothing can be recomputed
// from it.
bool attends_again(const Run& run, const Var& qkv) { return run.saving.recompute_attention && qkv.recipe; }

Computed<Saved> save_computed(const Run& run, const Var& qkv, const Prepared<Tensor>& p, const Attended& a,
                              const Attend& forward, const Arguments<Saved>& arguments) {
  if (attends_again(run, qkv)) return save_to_recompute(QkvAndArguments<Saved>{run.save(qkv), arguments}, forward);
  return {run.save(a.out), run.save(a.lse), save_prepared(run, qkv, p, forward.layout, arguments)};
}

// Returns true if the context exchange gathers whole sequences, and so can show them to an AttentionWatch.
bool shows_whole(const Attend& forward) {
  if (!forward.sequences.shards) return false;
  const SelectionPart part =
      forward.cp->selection_part(forward.sequences.shards, forward.attention.pattern, forward.layout.kv_heads);
  return part.heads.count > 0 && !part.shared;
}

// Adds the statistics of a call of attention. If the exchange shows whole sequences, the watch has already added them.
void add_kept(RecallStats& kept, Attention a, const Attend& forward) {
  const Sequences& sequences = forward.sequences;
  if (!sequences.shards) {
    a.queries = a.keys = sequences.spans();
    return kept.add(a, {0, a.k.dim(1)});
  }
  if (!shows_whole(forward)) kept.add(a, sequences.shards, *forward.cp);
}

// Returns statistics for watched steps, summed over rows, by head: the entropy and the row count and, for block
// patterns, the numbers of RecallStats::copy_to(). Runs attention once more, with keys in place of values: its output
// is the mean key, and the mean score is the query times the mean key. With a soft cap this does not hold, because
// scores are not linear in the keys: all sums are then 0. Does not tune kernels, so that the run's choice of kernels
// does not depend on whether a step is watched.
Tensor watched_sums(ExecContext ctx, const Attend& forward, const Parts& x, const BlockSelection& selection,
                    const PoolInputs<Tensor>& pools) {
  ctx.tuning = nullptr;
  const std::int64_t rows = x.q.dim(0), heads = forward.layout.heads;
  const bool blocks = forward.attention.pattern.blocks != nullptr;
  if (forward.attention.soft_cap > 0) return ctx.zeros({2 * heads});
  Attention a{.q = x.q,
              .k = x.k,
              .v = x.k,
              .out = ctx.empty(x.q.shape()),
              .lse = ctx.empty({heads, rows}),
              .scale = forward.attention.scale,
              .pattern = forward.attention.pattern,
              .selection = selection};
  std::optional<RecallStats> kept;
  if (blocks) kept.emplace(heads, forward.layout.kv_heads, ctx);
  const AttentionWatch watch = [&](const PooledAttention& call, KvHeads of) {
    Attention part = call.pairs;
    part.out = ctx.empty(part.out.shape());  // statistics overwrite the output, which has yet to be sent for this call
    kept->add(part, of);
  };
  PooledAttention pooled = with_pools(a, pools, ctx);
  if (pools.weights.defined()) pooled.pools.scored = x.v;
  if (pools.gates.defined()) pooled.pools.mean_gates = ctx.empty(a.lse.shape());
  attend(pooled, forward.sequences, forward.cp, ctx, blocks && shows_whole(forward) ? watch : nullptr);
  if (pools.gates.defined()) {  // entropy is lse minus the mean score, and scores include the gates
    a.lse = ctx.empty(a.lse.shape());
    axpby_kernel({.x = pooled.pairs.lse, .y = pooled.pools.mean_gates, .out = a.lse, .alpha = 1, .beta = -1}, ctx);
  }
  const Tensor each = ctx.empty({rows, 2 * heads}), sums = ctx.empty({(blocks ? 4 : 2) * heads + (blocks ? 3 : 0)});
  attention_entropy_kernel({x.q, a.out, a.lse, each, forward.attention.scale}, ctx);
  column_sum_kernel({each, sums.narrow(0, 0, 2 * heads)}, ctx);
  if (!blocks) return sums;
  add_kept(*kept, a, forward);
  kept->copy_to(sums.narrow(0, 2 * heads, 2 * heads + 3));
  return sums;
}

// Adds the gradient of the sinks to `slot`; does nothing if the slot is null.
void sink_rule(const Backward& back, const SlotPtr& slot, const Tensor& sinks, const AttentionBackward& a) {
  if (!slot) return;
  const Tensor terms = back.ctx.empty({a.out.dim(0), a.out.dim(1)});
  attention_sink_backward_kernel({a.out, a.lse, sinks, a.dout, terms}, back.ctx);
  const Sink dsinks = back.sink(slot, sinks.shape(), sinks.dtype());
  column_sum_kernel({terms, dsinks.dst, dsinks.beta}, back.ctx);
}

struct AttentionRule {
  static constexpr bool kKeepsNoTensor = true;
  Attend forward;

  // The gradients of q, k and v are views of one matrix: qkv's gradient itself if nothing was written to it yet.
  void operator()(const Backward& back, const AttentionInputs& inputs, const AttentionForBackward& saved) const {
    const Constants<Tensor> c = get_all(saved.arguments.constants, back.ctx);
    const Prepared<Tensor> p = get_all(saved.computed.prepared, back.ctx);
    const bool first = inputs.qkv && !inputs.qkv->written;
    const bool defers = first && inputs.qkv->reads_fp8 && c.inv_freq.defined() && !c.q_norm.defined();
    const bool direct = first && !defers;
    const Shape& shape = p.qkv.shape();
    const Tensor dqkv = direct ? back.sink(inputs.qkv, shape, p.qkv.dtype()).dst : back.ctx.empty(shape, p.qkv.dtype());
    const Parts d = forward.layout.split(dqkv);
    const PoolInputs<Tensor> pools = get_all(saved.arguments.pools, back.ctx);
    PoolInputs<Tensor> dpools;
    const AttentionBackward pairs = arguments(back, saved, final_parts(p, forward.layout), d);
    sink_rule(back, inputs.sinks, saved.arguments.sinks.get(back.ctx), pairs);
    attend_backward(with_pools(pairs, pools, dpools, back.ctx), forward.sequences, forward.cp, back.ctx);
    accumulate(back, inputs.pools, pools, dpools);
    if (defers) return back.accumulate(inputs.qkv, rotated_back(dqkv, c, forward.layout));
    rotate_both(dqkv, c, forward.layout, true, back.ctx);
    if (c.q_norm.defined()) {
      const Layout& l = forward.layout;
      const Parts raw = l.norm_rows(p.qkv, c.q_norm, c.k_norm), dy = l.norm_rows(dqkv, c.q_norm, c.k_norm);
      norm_rule(back, inputs.q_norm, raw.q, c.q_norm, p.q_rstd, dy.q, l.norm_offset);
      norm_rule(back, inputs.k_norm, raw.k, c.k_norm, p.k_rstd, dy.k, l.norm_offset);
    }
    if (!direct) back.accumulate(inputs.qkv, dqkv);
  }

  AttentionBackward arguments(const Backward& back, const AttentionForBackward& saved, const Parts& in,
                              const Parts& gradients) const {
    const ExecContext& ctx = back.ctx;
    const Tensor out = saved.computed.out.get(ctx);
    return {.q = in.q,
            .k = in.k,
            .v = in.v,
            .out = out,
            .lse = saved.computed.lse.get(ctx),
            .dout = back.grad().view(out.shape()),
            .dq = gradients.q,
            .dk = gradients.k,
            .dv = gradients.v,
            .scale = forward.attention.scale,
            .pattern = forward.attention.pattern,
            .dropout = forward.dropout.with(saved.arguments.rows.get(ctx), saved.arguments.state.get(ctx)),
            .selection = {saved.arguments.selection.get(ctx)},
            .soft_cap = forward.attention.soft_cap};
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
  RING_CHECK(o.q_norm.value.defined() == o.k_norm.value.defined(),
             "self_attention: q_norm and k_norm must be given together");
  if (o.q_norm.value.defined()) {
    const std::int64_t q = o.q_norm.value.numel(), k = o.k_norm.value.numel();
    RING_CHECK((q == o.head_dim && k == o.head_dim) || (q == o.heads * o.head_dim && k == o.kv_heads * o.head_dim),
               "self_attention: q_norm and k_norm have ", q, " and ", k,
               " weights, expected one for each channel of a head (", o.head_dim, ") or of all ", o.heads,
               " query and ", o.kv_heads, " KV heads");
  }
  RING_CHECK(!o.inv_freq.defined() || 2 * o.inv_freq.numel() <= o.head_dim, "self_attention: inv_freq is ",
             describe(o.inv_freq), " for heads of ", o.head_dim, " channels");
  check({o.pooling.value, o.pool_gates.value}, o.attention.pattern, qkv.dim(0), o.heads);
  RING_CHECK(!o.sinks.value.defined() || o.sinks.value.shape() == Shape({o.heads}), "self_attention: sinks are ",
             describe(o.sinks.value), ", expected one per head (", o.heads, ")");
  RING_CHECK((o.keys == nullptr) == (o.values == nullptr), "self_attention: keys and values must be given together");
}

}  // namespace

Var self_attention(Run& run, const Var& qkv, const Sequences& sequences, const SelfAttention& options) {
  check(run, qkv.value, sequences, options);
  const Tensor& in = qkv.value;
  const Layout layout{options.heads, options.kv_heads, options.head_dim, options.norm_eps, options.norm_offset};
  const Prepared<Tensor> p = prepare(run.ctx, in,
                                     {sequences.positions, options.inv_freq, options.q_norm.value, options.k_norm.value,
                                      sequences.inv_freq.defined() ? &sequences : nullptr},
                                     layout);
  const DropoutAddress dropout = dropout_address(run, options.attention, options.heads);
  ContextExchange* const exchange = run.layout.cp ? &run.layout.cp->of_layer(options.layer) : nullptr;
  const Attend forward{layout, options.attention, dropout, sequences.without_positions(), exchange};
  const Parts x = final_parts(p, layout);
  const BlockSelection given = options.selection ? *options.selection : BlockSelection{};
  const PoolInputs<Tensor> pools{options.pooling.value, options.pool_gates.value};
  const Attended a =
      forward(run.ctx, x, dropout.with(run.layout.rows, run.state), given, pools, options.sinks.value, options.watch);
  if (run.probes.entropies) run.probes.entropies->push_back(watched_sums(run.ctx, forward, x, a.selection, pools));
  if (options.keys) {
    *options.keys = x.k;
    *options.values = x.v;
  }
  if (options.queries) *options.queries = x.q;
  if (options.selection) *options.selection = a.selection;
  const Shape shape{in.dim(0), options.heads * options.head_dim};
  if (!run.records(qkv, options.q_norm, options.k_norm, options.pooling, options.pool_gates, options.sinks))
    return {a.out.view(shape), nullptr};
  const Arguments<Saved> arguments{.constants = {save_in_place(sequences.positions), save_in_place(options.inv_freq),
                                                 run.save(options.q_norm), run.save(options.k_norm)},
                                   .rows = save_in_place(run.layout.rows),
                                   .state = save_in_place(run.state),
                                   .selection = save_in_place(a.selection.kept),
                                   .pools = {run.save(options.pooling), run.save(options.pool_gates)},
                                   .sinks = run.save(options.sinks)};
  const Computed<Saved> computed = save_computed(run, qkv, p, a, forward, arguments);
  const Var y = run.record("self_attention", a.out.view(shape),
                           AttentionInputs{qkv.slot,
                                           options.q_norm.slot,
                                           options.k_norm.slot,
                                           {options.pooling.slot, options.pool_gates.slot},
                                           options.sinks.slot},
                           AttentionForBackward{arguments, computed}, AttentionRule{forward});
  if (!attends_again(run, qkv)) return y;
  return recomputable(y, computed.out, [shape](const ExecContext&, const Tensor& out) { return out.view(shape); });
}

}  // namespace ring
