#include "autograd/selected/attention_recall.h"

#include <algorithm>
#include <map>

#include "kernels/attention/pairs.h"
#include "kernels/attention/selected/attention_recall.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

// Returns the sampled queries that this rank holds. Query rows are counted in this rank's rows, key rows in the
// micro-batch. Each returned sample has at most one span of a document.
std::vector<QuerySample> held_part(const std::vector<QuerySample>& all, const ContextShards& shards) {
  std::vector<QuerySample> calls;
  std::map<std::int32_t, std::size_t> stretches;  // number of spans added so far, by the document's first row
  const auto add = [&](const Span& queries, const Span& keys) {
    const std::size_t call = stretches[keys.first]++;
    if (call == calls.size()) calls.emplace_back();
    calls[call].queries.push_back(queries), calls[call].keys.push_back(keys);
  };
  for (const QuerySample& some : all)
    for (std::size_t i = 0; i < some.queries.size(); ++i)
      for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(shards.rank)]) {
        const Span& q = some.queries[i];
        const std::int32_t begin = std::max(q.first, h.global), end = std::min(q.first + q.count, h.global + h.count);
        if (begin < end)
          add({h.first + begin - h.global, end - begin, q.position + begin - q.first, q.document}, some.keys[i]);
      }
  return calls;
}

// Returns the log-sum-exps of dense attention for the sampled queries, -inf for others. Overwrites the output.
Tensor dense_lse(const Attention& kept, std::vector<QuerySample> samples, const ExecContext& ctx) {
  Attention dense = kept;
  dense.pattern = {}, dense.selection = {}, dense.dropout = {};
  dense.lse = ctx.empty(kept.lse.shape());
  if (samples.empty()) samples.emplace_back();
  for (const QuerySample& sample : samples) {
    dense.queries = sample.queries, dense.keys = sample.keys;
    attention_kernel(dense, ctx);
    dense.carry = dense.out;  // keeps the rows of this sample in later calls
  }
  return dense.lse;
}

// Returns, for each span of keys, the first selection row of its document.
std::vector<std::int32_t> block_rows_of(const std::vector<Span>& keys, const Pattern& pattern,
                                        const std::vector<Span>& documents) {
  const std::vector<std::int32_t> first = first_blocks(pattern, documents);
  std::vector<std::int32_t> rows;
  for (const Span& k : keys) {
    const auto document = std::ranges::find(documents, k.first, &Span::first);
    rows.push_back(first[static_cast<std::size_t>(document - documents.begin())]);
  }
  return rows;
}

// Stores the numbers of kept pairs and of causal dense pairs, over all KV heads, in `out`, f32 [2].
void sum_selected(const Attention& a, const std::vector<QuerySample>& calls, const std::vector<Span>& documents,
                  const Tensor& out, const ExecContext& ctx) {
  const std::int64_t n = std::ssize(calls), rows = a.selection.kept.dim(0);
  const Tensor each = ctx.zeros({n * rows, 2});
  for (std::int64_t i = 0; i < n; ++i) {
    const QuerySample& c = calls[static_cast<std::size_t>(i)];
    const BlockSelection selection{a.selection.kept, block_rows_of(c.keys, a.pattern, documents)};
    selected_pairs_kernel({selection, each.narrow(0, i * rows, rows), c.queries, c.keys, a.pattern}, ctx);
  }
  column_sum_kernel({each, out}, ctx);
}

// Returns the number of (query, key) pairs that the pattern keeps in these calls, over all KV heads.
double count_pairs(const Pattern& p, const std::vector<QuerySample>& calls, std::int64_t heads) {
  double sum = 0;
  for (const QuerySample& c : calls) sum += kept_pairs(p, c.queries, c.keys, heads);
  return static_cast<double>(heads) * sum;
}

void store_numbers(const Tensor& out, const std::vector<double>& numbers, const ExecContext& ctx) {
  copy(out, from_host(std::vector<float>(numbers.begin(), numbers.end()), ctx.stream), ctx.stream);
}

// Stores the numbers of kept pairs, of causal dense pairs, and of pairs with pools of these sizes, over all KV heads,
// in `out`, f32 [3].
void sum_pairs(const Attention& a, const std::vector<std::int32_t>& pools, const std::vector<QuerySample>& calls,
               const std::vector<Span>& documents, const Tensor& out, const ExecContext& ctx) {
  const auto count = [&](const Pattern& p) { return count_pairs(p, calls, a.k.dim(1)); };
  if (a.selection.kept.defined())
    sum_selected(a, calls, documents, out.narrow(0, 0, 2), ctx);
  else
    store_numbers(out.narrow(0, 0, 2), {count(a.pattern), count({})}, ctx);
  if (!pools.empty()) store_numbers(out.narrow(0, 2, 1), {count({.pools = pools}) - count({})}, ctx);
}

// Returns a sample of the queries that is cheap compared with a step.
std::vector<QuerySample> sample_of(const Pattern& pattern, const std::vector<Span>& documents) {
  constexpr std::int64_t kMaxBlocks = 64;
  return sample_blocks(pattern, documents, kMaxBlocks);
}

// Returns sums over the sampled rows, f32 [2 H], contiguous: the share of each head, then the number of rows of each
// head.
Tensor shares_of(const Attention& kept, const std::vector<QuerySample>& samples, const ExecContext& ctx) {
  const std::int64_t heads = kept.q.dim(1);
  const Tensor each = ctx.empty({kept.q.dim(0), 2 * heads}), sums = ctx.empty({2 * heads});
  attention_recall_kernel({kept.lse, dense_lse(kept, samples, ctx), each}, ctx);
  column_sum_kernel({each, sums}, ctx);
  return sums;
}

// Returns the call without pools, because shares are relative to dense attention over tokens. If there were pools,
// attend(call, context) runs attention again without them.
template <class Attend>
Attention of_tokens(Attention a, const Attend& attend, const ExecContext& ctx) {
  if (a.pattern.pools.empty()) return a;
  a.pattern.pools.clear();
  a.lse = ctx.empty(a.lse.shape());
  attend(a, ctx);
  return a;
}

}  // namespace

RecallStats::RecallStats(std::int64_t heads, std::int64_t kv_heads, const ExecContext& ctx)
    : ctx_(ctx), shares_(ctx.zeros({heads})), rows_(ctx.zeros({heads})), pairs_(ctx.zeros({kv_heads, 3})) {}

void RecallStats::add(const Attention& computed, KvHeads heads) {
  const Attention a = of_tokens(computed, attention_kernel, ctx_);
  const std::int64_t count = a.q.dim(1), first = heads.first * count / heads.count;
  const std::vector<Span> documents = a.queries;
  const Tensor of_heads = shares_of(a, sample_of(a.pattern, documents), ctx_);
  copy(shares_.narrow(0, first, count), of_heads.narrow(0, 0, count), ctx_.stream);
  copy(rows_.narrow(0, first, count), of_heads.narrow(0, count, count), ctx_.stream);
  sum_pairs(a, computed.pattern.pools, {{documents, documents}}, documents, pairs_of(heads.first), ctx_);
}

void RecallStats::add(const Attention& computed, const std::shared_ptr<const ContextShards>& shared,
                      ContextExchange& exchange) {
  const ContextShards& shards = *shared;
  const auto attend = [&](const Attention& a, const ExecContext& ctx) { exchange.forward({a}, shared, ctx, {}); };
  Attention a = of_tokens(computed, attend, ctx_);
  const std::int64_t heads = a.q.dim(1);
  a.k = a.v = exchange.all_rows(a.k, shards, ctx_);
  if (a.q.dim(0) == 0) return;
  const Tensor of_heads = shares_of(a, held_part(sample_of(a.pattern, shards.documents), shards), ctx_);
  shares_ = of_heads.narrow(0, 0, heads), rows_ = of_heads.narrow(0, heads, heads);
  sum_pairs(a, computed.pattern.pools, held_part({{shards.documents, shards.documents}}, shards), shards.documents,
            pairs_of(0), ctx_);
}

void RecallStats::copy_to(const Tensor& sums) const {
  const std::int64_t heads = shares_.dim(0);
  copy(sums.narrow(0, 0, heads), shares_, ctx_.stream);
  copy(sums.narrow(0, heads, heads), rows_, ctx_.stream);
  column_sum_kernel({pairs_, sums.narrow(0, 2 * heads, 3)}, ctx_);
}

}  // namespace ring
