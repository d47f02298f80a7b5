// Attention over the pools of whole documents.

#include "kernels/attention/pools/pooled_attention.h"

#include <memory>

#include "kernels/attention/pools/pool_keys.h"

namespace ring {
namespace {

template <class Args>
void check_whole(const Args& a, bool carries) {
  check(a.pattern, "attention");
  RING_CHECK(!carries && a.queries == a.keys, "attention: pools of parts of documents");
}

// Computes the pools of whole documents. Returns one element per pool size; omits sizes without any pool.
std::vector<PoolKeys> pools_of_documents(const PoolSource& source, const std::vector<Span>& documents,
                                         const ExecContext& ctx) {
  std::vector<PoolKeys> all;
  for (std::size_t i = 0; i < source.sizes.size(); ++i) {
    const std::vector<Span> spans = pool_spans(documents, source.sizes[i]);
    const std::int64_t pools = spans.empty() ? 0 : spans.back().first + spans.back().count;
    if (pools == 0) continue;
    const auto sums = std::make_shared<PoolSums>(source, i, pools, ctx);
    const PoolTokens tokens{source.k, source.v, source.scored, pooled_rows(documents, source.sizes[i])};
    sums->compute_pools(tokens);
    all.push_back({source.sizes[i],
                   sums->keys,
                   sums->values,
                   {{documents, spans}},
                   [=](const Tensor& gradients, const Tensor& dk, const Tensor& dv) {
                     sums->backward(tokens, gradients, dk, dv);
                     sums->reduce_weight_gradients();
                   }});
  }
  return all;
}

}  // namespace

std::vector<PoolSegment> pooled_rows(const std::vector<Span>& documents, std::int32_t pool) {
  std::vector<PoolSegment> rows;
  std::int32_t out = 0;
  for (const Span& s : documents) {
    rows.push_back({.first = s.first, .count = count_pools(s, pool) * pool, .out = out});
    out += count_pools(s, pool);
  }
  return rows;
}

void pooled_attention(PooledAttention args, const ExecContext& ctx) {
  const Attention& a = args.pairs;
  if (a.pattern.pools.empty()) return attention_kernel(a, ctx);
  check_whole(a, a.carry.defined());
  const Tensor pooled_lse = attend_to_pools(args, pools_of_documents(pool_source(args), a.keys, ctx), ctx);
  attention_kernel(a, ctx);
  write_mean_gates(args, pooled_lse, ctx);
}

void pooled_attention_backward(PooledAttentionBackward args, const ExecContext& ctx) {
  const AttentionBackward& a = args.pairs;
  if (a.pattern.pools.empty()) return attention_backward_kernel(a, ctx);
  check_whole(a, a.carry_dq.defined() || a.carry_dk.defined());
  attend_to_pools(args, pools_of_documents(pool_source(args), a.keys, ctx), ctx);
  attention_backward_kernel(a, ctx);
}

}  // namespace ring
