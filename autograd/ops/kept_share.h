#pragma once
// What a watched step asks of attention over blocks: how much it keeps (kernels/attention/kept_share.h).

#include "autograd/ops/attend.h"
#include "kernels/attention/kept_share.h"
#include "kernels/matmul.h"

namespace ring {

// Whether there is an answer: dense attention to compare with needs whole sequences.
inline bool has_shares(const AttentionOptions& o, const Sequences& sequences) {
  return o.pattern.blocks && !sequences.shards;
}

// Log-sum-exps of dense attention for some blocks of queries, -inf for others: as many as cost little beside a step.
// The output is overwritten.
inline Tensor sampled_dense(const Attention& kept, const ExecContext& ctx) {
  constexpr std::int64_t kMostBlocks = 64;
  Attention dense = kept;
  dense.pattern = {}, dense.selection = {};
  dense.lse = ctx.empty(kept.lse.shape());
  for (const QuerySample& sample : sample_blocks(kept.pattern, kept.queries, kMostBlocks)) {
    dense.queries = sample.queries, dense.keys = sample.keys;
    attention_kernel(dense, ctx);
    dense.carry = dense.out;  // the next ones leave other rows as they are
  }
  return dense.lse;
}

// Pairs that are kept, and those of causal dense attention, over all KV heads and blocks: f32 [2] goes to `sums`.
inline void sum_pairs(const Attention& a, const Tensor& sums, const ExecContext& ctx) {
  if (a.selection.bits.defined()) {
    const Tensor rows = ctx.empty({a.selection.bits.dim(0), 2});
    selected_pairs_kernel({a.selection, rows, a.queries, a.pattern}, ctx);
    return column_sum_kernel({rows, sums}, ctx);
  }
  const std::int64_t heads = a.k.dim(1);
  const auto pairs = [&](const Pattern& p) {
    return static_cast<float>(static_cast<double>(heads) * kept_pairs(p, a.queries, a.keys, heads));
  };
  copy(sums, from_host(std::vector{pairs(a.pattern), pairs({})}, ctx.stream), ctx.stream);
}

// What attention that was computed, with all its arguments, keeps: by heads the sums of the shares and how many rows
// these are, [2 Hq], and behind them the pairs.
inline void sum_shares(const Attention& a, const Tensor& sums, const ExecContext& ctx) {
  const std::int64_t heads = a.q.dim(1);
  const Tensor each = ctx.empty({a.q.dim(0), 2 * heads});
  kept_share_kernel({a.lse, sampled_dense(a, ctx), each}, ctx);
  column_sum_kernel({each, sums.narrow(0, 0, 2 * heads)}, ctx);
  sum_pairs(a, sums.narrow(0, 2 * heads, 2), ctx);
}

}  // namespace ring
