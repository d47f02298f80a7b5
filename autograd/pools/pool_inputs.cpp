#include "autograd/pools/pool_inputs.h"

#include "kernels/attention/pools/pool_gate.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Returns one set of weights for each size of pools; empty if the flat tensor is undefined.
template <class Args>
std::vector<PoolWeights> weights_of(const Tensor& flat, const Args& a) {
  if (!flat.defined()) return {};
  return pool_weights(flat, a.pattern, a.k.dim(1), a.k.dim(2));
}

// Transposes gates to the layout of attention.
Tensor by_head(const Tensor& gates, const ExecContext& ctx) {
  if (!gates.defined()) return {};
  const Tensor turned = ctx.empty({gates.dim(1), gates.dim(0)});
  transpose_kernel({gates, turned}, ctx);
  return turned;
}

}  // namespace

void check(const PoolInputs<Tensor>& in, const Pattern& pattern, std::int64_t tokens, std::int64_t heads) {
  RING_CHECK((!in.weights.defined() && !in.gates.defined()) || !pattern.pools.empty(),
             "self_attention: weights or gates of pools for a pattern without pools");
  RING_CHECK(!in.gates.defined() || in.gates.shape() == Shape({tokens, heads}), "self_attention: gates of pools ",
             describe(in.gates), ", expected one for each of ", tokens, " tokens and ", heads, " heads");
}

PooledAttention with_pools(const Attention& a, const PoolInputs<Tensor>& in, const ExecContext& ctx) {
  return {a, {weights_of(in.weights, a), by_head(in.gates, ctx)}};
}

PooledAttentionBackward with_pools(const AttentionBackward& a, const PoolInputs<Tensor>& in,
                                   PoolInputs<Tensor>& gradients, const ExecContext& ctx) {
  if (in.weights.defined()) gradients.weights = ctx.zeros(in.weights.shape());
  if (in.gates.defined()) gradients.gates = ctx.empty(a.lse.shape());
  return {a, {weights_of(in.weights, a), weights_of(gradients.weights, a), by_head(in.gates, ctx), gradients.gates}};
}

void accumulate(const Backward& back, const PoolInputs<SlotPtr>& slots, const PoolInputs<Tensor>& values,
                const PoolInputs<Tensor>& gradients) {
  if (values.gates.defined() && slots.gates) {
    const Sink s = back.sink(slots.gates, values.gates.shape(), values.gates.dtype());
    transpose_kernel({gradients.gates, s.dst, s.beta}, back.ctx);
  }
  if (values.weights.defined() && slots.weights) {
    const Sink s = back.sink(slots.weights, values.weights.shape(), values.weights.dtype());
    column_sum_kernel({gradients.weights.view({1, gradients.weights.numel()}), s.dst, s.beta}, back.ctx);
  }
}

}  // namespace ring
