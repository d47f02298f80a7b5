#include "kernels/attention/pools/pool_keys.h"

#include <utility>

#include "kernels/attention/pools/pool_gate.h"
#include "kernels/attention/pools/weighted_pool.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

const PoolWeights& at(const std::vector<PoolWeights>& weights, std::size_t i) {
  static const PoolWeights none;
  return weights.empty() ? none : weights[i];
}

Tensor half(const Tensor& both, std::int64_t i) {
  return both.narrow(0, i, 1).view({both.dim(1), both.dim(2), both.dim(3)});
}

template <class Args>
void check_pooled(const Args& args) {
  const auto& [a, p] = args;
  if (a.pattern.pools.empty()) return;
  RING_CHECK(p.weights.empty() || p.weights.size() == a.pattern.pools.size(), "attention: weights of ",
             p.weights.size(), " sizes of pools, the pattern has ", a.pattern.pools.size());
  RING_CHECK(!p.gates.defined() || (p.gates.shape() == a.lse.shape() && p.gates.dtype() == DType::f32),
             "attention: gates ", describe(p.gates), " of pools, the log-sum-exps are ", describe(a.lse));
  RING_CHECK(a.dropout.rate == 0, "attention: dropout on weights with pools");
}

}  // namespace

PoolSource pool_source(const PooledAttention& args) {
  check_pooled(args);
  const auto& [a, p] = args;
  return {a.pattern.pools, a.k, a.v, p.scored.defined() ? p.scored : a.v, p.weights, {}};
}

PoolSource pool_source(const PooledAttentionBackward& args) {
  check_pooled(args);
  const auto& [a, p] = args;
  RING_CHECK(p.weights.size() == p.dweights.size() && p.gates.defined() == p.dgates.defined(),
             "attention: learned pool parameters without gradients");
  return {a.pattern.pools, a.k, a.v, a.v, p.weights, p.dweights};
}

PoolSums::PoolSums(const PoolSource& s, std::size_t i, std::int64_t pools, const ExecContext& ctx)
    : size_(s.sizes[i]), learned_(at(s.weights, i)), dlearned_(at(s.dweights, i)), ctx_(ctx) {
  const Shape shape{pools, s.k.dim(1), s.k.dim(2)};
  keys = ctx.empty(shape, s.k.dtype()), values = ctx.empty(shape, s.v.dtype());
  if (learned_.query.defined()) weights_ = ctx.empty({pools, shape[1], size_});
}

void PoolSums::compute_pools(const PoolTokens& t) {
  if (weights_.defined())
    return weighted_pool_kernel(
        {t.k, t.v, t.scored, learned_.positions, learned_.query, keys, values, weights_, t.rows}, ctx_);
  block_pool_kernel({t.k, keys, t.rows, size_}, ctx_);
  block_pool_kernel({t.v, values, t.rows, size_}, ctx_);
}

void PoolSums::backward(const PoolTokens& t, const Tensor& gradients, const Tensor& dk, const Tensor& dv) {
  const Tensor dkeys = half(gradients, 0), dvalues = half(gradients, 1);
  if (!weights_.defined()) {
    block_pool_backward_kernel({dkeys, dk, t.rows, size_}, ctx_);
    block_pool_backward_kernel({dvalues, dv, t.rows, size_}, ctx_);
    return;
  }
  if (!dquery_.defined()) dpositions_ = ctx_.empty(weights_.shape()), dquery_ = ctx_.empty(keys.shape());
  weighted_pool_backward_kernel(
      {t.k, t.v, learned_.query, weights_, dkeys, dvalues, dk, dv, dpositions_, dquery_, t.rows}, ctx_);
}

void PoolSums::reduce_weight_gradients() const {
  if (!dquery_.defined() || keys.dim(0) == 0) return;
  for (const auto& [each, sum] : {std::pair{dpositions_, dlearned_.positions}, {dquery_, dlearned_.query}})
    column_sum_kernel({each.view({each.dim(0), sum.numel()}), sum.view({sum.numel()})}, ctx_);
}

namespace {

// Returns the call `whole` with the pools of `call` instead of the keys. The caller sets the result tensors.
template <class Args>
Args over(const PoolKeys& pools, const PoolCall& call, Args whole) {
  whole.k = pools.keys, whole.v = pools.values;
  whole.queries = call.queries, whole.keys = call.keys;
  whole.pattern = {.pool = pools.size};
  whole.selection = {};
  return whole;
}

// Computes attention over the pools, with the gates unless they are undefined, into out (f32) and a.lse.
void attend_pools(const Attention& a, const Tensor& gates, const std::vector<PoolKeys>& all, const Tensor& out,
                  const ExecContext& ctx) {
  if (a.q.dim(0) == 0) return;
  bool first = true;
  for (const PoolKeys& pools : all)
    for (const PoolCall& call : pools.calls) {
      Attention one = over(pools, call, a);
      one.out = out;
      if (!std::exchange(first, false)) one.carry = out;
      attention_kernel(one, ctx);
    }
  if (gates.defined()) axpby_kernel({.x = a.lse, .y = gates, .out = a.lse, .alpha = 1, .beta = 1}, ctx);
}

// Computes the gradient of the gates. Recomputes attention over the pools alone.
void gate_backward(const PooledAttentionBackward& args, const std::vector<PoolKeys>& pools, const ExecContext& ctx) {
  const auto& [a, p] = args;
  const Tensor pooled = ctx.empty(a.out.shape()), pooled_lse = ctx.empty(a.lse.shape());
  const Attention again{
      .q = a.q, .k = a.k, .v = a.v, .out = pooled, .lse = pooled_lse, .queries = {}, .keys = {}, .scale = a.scale};
  attend_pools(again, p.gates, pools, pooled, ctx);
  pool_gate_kernel({.pooled_lse = pooled_lse,
                    .lse = a.lse,
                    .gates = {},
                    .out = p.dgates,
                    .dout = a.dout,
                    .pooled = pooled,
                    .attended = a.out},
                   ctx);
}

// Returns the gradients of the keys and values of one pool size, f32 [2,pools,Hk,D]. Also computes the gradient of the
// queries: adds it to dq if `has` (dq already holds a gradient), otherwise overwrites dq.
Tensor gradients_of(const PoolKeys& pools, const AttentionBackward& whole, const Tensor& dq, bool has,
                    const ExecContext& ctx) {
  const Shape& shape = pools.keys.shape();
  const Shape both{2, shape[0], shape[1], shape[2]};
  if (whole.q.dim(0) == 0) return ctx.zeros(both);
  const Tensor gradients = ctx.empty(both);
  bool first = true;
  for (const PoolCall& call : pools.calls) {
    AttentionBackward one = over(pools, call, whole);
    one.dq = dq, one.dk = half(gradients, 0), one.dv = half(gradients, 1);
    if (std::exchange(has, true)) one.carry_dq = dq;
    if (!std::exchange(first, false)) one.carry_dk = one.dk, one.carry_dv = one.dv;
    attention_backward_kernel(one, ctx);
  }
  return gradients;
}

}  // namespace

Tensor attend_to_pools(PooledAttention& args, const std::vector<PoolKeys>& pools, const ExecContext& ctx) {
  Attention& a = args.pairs;
  a.pattern.pools.clear();
  if (pools.empty()) return {};
  const Tensor out = a.out.dtype() == DType::f32 && a.out.is_contiguous() ? a.out : ctx.empty(a.out.shape());
  a.carry = {};
  attend_pools(a, args.pools.gates, pools, out, ctx);
  a.carry = out;
  if (!args.pools.mean_gates.defined()) return {};
  const Tensor pooled_lse = ctx.empty(a.lse.shape());
  copy(pooled_lse, a.lse, ctx.stream);
  return pooled_lse;
}

void write_mean_gates(const PooledAttention& args, const Tensor& pooled_lse, const ExecContext& ctx) {
  const auto& [a, p] = args;
  if (!p.mean_gates.defined() || a.q.dim(0) == 0) return;
  if (!pooled_lse.defined()) return fill_zero(p.mean_gates, ctx.stream);
  pool_gate_kernel({pooled_lse, a.lse, p.gates, p.mean_gates}, ctx);
}

void attend_to_pools(PooledAttentionBackward& args, const std::vector<PoolKeys>& pools, const ExecContext& ctx) {
  auto& [a, p] = args;
  a.pattern.pools.clear();
  if (pools.empty()) {
    if (p.gates.defined()) fill_zero(p.dgates, ctx.stream);
    return;
  }
  AttentionBackward alone = a;
  if (p.gates.defined() && a.q.dim(0) > 0) {
    gate_backward(args, pools, ctx);
    // Subtracts the gates from lse instead of adding them to the scores: P of a pool is exp(score + gate - lse).
    alone.lse = ctx.empty(a.lse.shape());
    axpby_kernel({.x = a.lse, .y = p.gates, .out = alone.lse, .alpha = 1, .beta = -1}, ctx);
  }
  a.carry_dq = a.dq.dtype() == DType::f32 ? a.dq : ctx.empty(a.dq.shape());
  a.carry_dk = ctx.zeros(a.dk.shape()), a.carry_dv = ctx.zeros(a.dv.shape());
  bool has = false;
  for (const PoolKeys& some : pools)
    some.backward(gradients_of(some, alone, a.carry_dq, std::exchange(has, true), ctx), a.carry_dk, a.carry_dv);
}

}  // namespace ring
