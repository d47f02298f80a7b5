#include "kernels/attention/pooled_attention.h"

#include <utility>

#include "kernels/attention/pool_gate.h"
#include "kernels/attention/pools.h"
#include "kernels/attention/weighted_pool.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// The pools of one size.
struct Pools {
  std::int32_t size;
  std::vector<PooledRows> rows;
  std::vector<Span> spans;
  Tensor keys, values, weights;  // weights: where they are learned

  Pools(std::int32_t size, const Tensor& k, const Tensor& v, const std::vector<Span>& documents, const ExecContext& ctx)
      : size(size), rows(pooled_rows(documents, size)), spans(pool_spans(documents, size)) {
    const Shape shape{spans.empty() ? 0 : spans.back().first + spans.back().count, k.dim(1), k.dim(2)};
    keys = ctx.empty(shape, k.dtype()), values = ctx.empty(shape, v.dtype());
  }
  bool none() const { return keys.dim(0) == 0; }

  void make(const Tensor& k, const Tensor& v, const Tensor& scored, const PoolWeights* learned,
            const ExecContext& ctx) {
    if (!learned) {
      block_pool_kernel({k, keys, rows, size}, ctx);
      block_pool_kernel({v, values, rows, size}, ctx);
      return;
    }
    weights = ctx.empty({keys.dim(0), keys.dim(1), size});
    weighted_pool_kernel({k, v, scored, learned->positions, learned->query, keys, values, weights, rows}, ctx);
  }

  // dkeys, dvalues f32 to the tokens, and what is learned of them.
  void backward(const PooledAttentionBackward& a, const PoolWeights* learned, const PoolWeights* dlearned,
                const Tensor& dkeys, const Tensor& dvalues, const Tensor& dk, const Tensor& dv,
                const ExecContext& ctx) const {
    if (!learned) {
      block_pool_backward_kernel({dkeys, dk, rows, size}, ctx);
      block_pool_backward_kernel({dvalues, dv, rows, size}, ctx);
      return;
    }
    const Tensor dpositions = ctx.empty(weights.shape()), dquery = ctx.empty(dkeys.shape());
    weighted_pool_backward_kernel({a.k, a.v, learned->query, weights, dkeys, dvalues, dk, dv, dpositions, dquery, rows},
                                  ctx);
    for (const auto& [each, sum] : {std::pair{dpositions, dlearned->positions}, {dquery, dlearned->query}})
      column_sum_kernel({each.view({each.dim(0), sum.numel()}), sum.view({sum.numel()})}, ctx);
  }
};

const PoolWeights* at(const std::vector<PoolWeights>& weights, std::size_t i) {
  return weights.empty() ? nullptr : &weights[i];
}

// A call over one size; its results are the caller's to place.
template <class Args>
Args over(const Pools& pools, Args whole) {
  whole.k = pools.keys, whole.v = pools.values, whole.keys = pools.spans;
  whole.pattern = {.pool = pools.size};
  whole.selection = {};
  return whole;
}

// Into `out` f32, which may hold what others gave.
Attention over(const Pools& pools, const Attention& whole, const Tensor& out, bool first) {
  Attention one = over(pools, whole);
  one.out = out;
  if (!first) one.carry = out;
  return one;
}

AttentionBackward over(const Pools& pools, const AttentionBackward& whole, const Tensor& dq, bool first) {
  AttentionBackward one = over(pools, whole);
  one.dq = dq;
  if (!first) one.carry_dq = dq;
  return one;
}

void check_weights(const char* what, const std::vector<PoolWeights>& weights, const Pattern& p) {
  RING_CHECK(weights.empty() || weights.size() == p.pools.size(), "attention: ", what, " of ", weights.size(),
             " sizes of pools, the pattern has ", p.pools.size());
}

template <class Args>
void check_pooled(const Args& a, bool carries) {
  check(a.pattern, "attention");
  check_weights("weights", a.weights, a.pattern);
  RING_CHECK(!a.gates.defined() || (a.gates.shape() == a.lse.shape() && a.gates.dtype() == DType::f32),
             "attention: gates ", describe(a.gates), " of pools, the log-sum-exps are ", describe(a.lse));
  RING_CHECK(a.dropout.rate == 0, "attention: dropout on weights with pools");
  RING_CHECK(!carries && a.queries == a.keys, "attention: pools of parts of documents");
}

// Into `out` f32 and the log-sum-exp, with the gates. False: no document has a pool, and nothing is written.
bool attend_pools(const PooledAttention& a, const Tensor& out, const Tensor& scored, const ExecContext& ctx) {
  bool first = true;
  for (std::size_t i = 0; i < a.pattern.pools.size(); ++i) {
    Pools pools(a.pattern.pools[i], a.k, a.v, a.keys, ctx);
    if (pools.none()) continue;
    pools.make(a.k, a.v, scored, at(a.weights, i), ctx);
    attention_kernel(over(pools, static_cast<const Attention&>(a), out, first), ctx);
    first = false;
  }
  if (!first && a.gates.defined()) axpby_kernel({.x = a.lse, .y = a.gates, .out = a.lse, .alpha = 1, .beta = 1}, ctx);
  return !first;
}

}  // namespace

std::int64_t pool_weights_numel(const Pattern& p, std::int64_t kv_heads, std::int64_t dim) {
  std::int64_t numel = 0;
  for (const std::int32_t size : p.pools) numel += kv_heads * (size + dim);
  return numel;
}

std::vector<PoolWeights> pool_weights(const Tensor& flat, const Pattern& p, std::int64_t kv_heads, std::int64_t dim) {
  RING_CHECK(flat.numel() == pool_weights_numel(p, kv_heads, dim), "attention: weights of pools ", describe(flat),
             ", expected ", pool_weights_numel(p, kv_heads, dim), " numbers");
  std::vector<PoolWeights> weights;
  std::int64_t begin = 0;
  const auto next = [&](std::int64_t width) {
    const Tensor t = flat.narrow(0, begin, kv_heads * width).view({kv_heads, width});
    begin += kv_heads * width;
    return t;
  };
  for (const std::int32_t size : p.pools) {
    const Tensor positions = next(size);
    weights.push_back({positions, next(dim)});
  }
  return weights;
}

std::vector<PoolWeights> of_heads(const std::vector<PoolWeights>& all, KvHeads heads) {
  std::vector<PoolWeights> some;
  for (const PoolWeights& w : all)
    some.push_back({w.positions.narrow(0, heads.first, heads.count), w.query.narrow(0, heads.first, heads.count)});
  return some;
}

void pooled_attention(PooledAttention args, const ExecContext& ctx) {
  if (args.pattern.pools.empty()) return attention_kernel(args, ctx);
  check_pooled(args, args.carry.defined());
  const bool tells = args.mean_gates.defined();
  const Tensor sum = args.out.dtype() == DType::f32 && args.out.contiguous() ? args.out : ctx.empty(args.out.shape());
  const bool some = attend_pools(args, sum, args.scored.defined() ? args.scored : args.v, ctx);
  if (some) args.carry = sum;
  Tensor pooled_lse;
  if (some && tells) copy(pooled_lse = ctx.empty(args.lse.shape()), args.lse, ctx.stream);
  args.pattern.pools.clear();
  attention_kernel(args, ctx);
  if (tells && some) pool_gate_kernel({pooled_lse, args.lse, args.gates, args.mean_gates}, ctx);
  if (tells && !some) fill_zero(args.mean_gates, ctx.stream);
}

namespace {

// The gradient of the gates, by the attention over the pools alone, which is computed again.
void gate_backward(const PooledAttentionBackward& a, const ExecContext& ctx) {
  const Tensor pooled = ctx.empty(a.out.shape()), pooled_lse = ctx.empty(a.lse.shape());
  const PooledAttention again({.q = a.q,
                               .k = a.k,
                               .v = a.v,
                               .out = pooled,
                               .lse = pooled_lse,
                               .queries = a.queries,
                               .keys = a.keys,
                               .scale = a.scale,
                               .pattern = a.pattern},
                              a.weights, a.gates);
  if (!attend_pools(again, pooled, a.v, ctx)) return fill_zero(a.dgates, ctx.stream);
  pool_gate_kernel({.pooled_lse = pooled_lse,
                    .lse = a.lse,
                    .gates = {},
                    .out = a.dgates,
                    .dout = a.dout,
                    .pooled = pooled,
                    .attended = a.out},
                   ctx);
}

}  // namespace

void pooled_attention_backward(PooledAttentionBackward args, const ExecContext& ctx) {
  if (args.pattern.pools.empty()) return attention_backward_kernel(args, ctx);
  check_pooled(args, args.carry_dq.defined() || args.carry_dk.defined());
  check_weights("gradients", args.dweights, args.pattern);
  RING_CHECK(args.weights.size() == args.dweights.size() && args.gates.defined() == args.dgates.defined(),
             "attention: what pools learn, without gradients");
  AttentionBackward of_pools = args;
  if (args.gates.defined()) {
    gate_backward(args, ctx);
    of_pools.lse = ctx.empty(args.lse.shape());  // exp(score + gate - lse)
    axpby_kernel({.x = args.lse, .y = args.gates, .out = of_pools.lse, .alpha = 1, .beta = -1}, ctx);
  }
  const std::vector<std::int32_t> sizes = std::exchange(args.pattern.pools, {});
  const Tensor dq = args.dq.dtype() == DType::f32 ? args.dq : ctx.empty(args.dq.shape());
  const Tensor dk = ctx.zeros(args.dk.shape()), dv = ctx.zeros(args.dv.shape());
  bool first = true;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Pools pools(sizes[i], args.k, args.v, args.keys, ctx);
    if (pools.none()) continue;
    pools.make(args.k, args.v, args.v, at(args.weights, i), ctx);
    AttentionBackward one = over(pools, of_pools, dq, first);
    one.dk = ctx.empty(pools.keys.shape()), one.dv = ctx.empty(pools.values.shape());
    attention_backward_kernel(one, ctx);
    pools.backward(args, at(args.weights, i), at(args.dweights, i), one.dk, one.dv, dk, dv, ctx);
    first = false;
  }
  if (!first) args.carry_dq = dq, args.carry_dk = dk, args.carry_dv = dv;
  attention_backward_kernel(args, ctx);
}

}  // namespace ring
