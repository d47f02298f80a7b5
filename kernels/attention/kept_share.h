#pragma once
// What watched steps measure of patterns of blocks: how many pairs they keep, and how much of dense attention.

#include <vector>

#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// The share of a row's dense attention that the pairs hold which a pattern keeps. Both sums are over exp(score), so it
// is exp(kept - dense) of their log-sum-exps. kept, dense f32 [Hq,N]; out f32 [N,2Hq]: the shares, and behind them 1,
// for rows whose `dense` is finite; 0 and 0 for others.
struct KeptShare {
  Tensor kept, dense, out;
};
inline Cost cost(const KeptShare& a) { return cost_of(a.out, {a.kept, a.dense, a.out}); }
inline constinit Kernel<KeptShare> kept_share_kernel{"kept_share"};
void check(const KeptShare&);  // Error: shapes. Names the tensor.

// Pairs of these queries and a key, by blocks, out f32 [rows,2]: those that a selection keeps, and those of causal
// dense attention, both over all KV heads, in the row that the selection has for the block of queries. Other rows are
// left as they are. No two spans of queries are of one block; the keys are their whole documents.
struct SelectedPairs {
  BlockSelection selection;
  Tensor out;
  std::vector<Span> queries, keys;
  Pattern pattern;
};
inline Cost cost(const SelectedPairs& a) { return cost_of(a.out, {a.selection.bits, a.out}); }
inline constinit Kernel<SelectedPairs> selected_pairs_kernel{"selected_pairs"};
void check(const SelectedPairs&);  // Error: shapes, spans that the selection does not have, or other keys

// Some queries of documents, and the keys of their documents, as one call of attention takes them.
struct QuerySample {
  std::vector<Span> queries, keys;
};
// At most `most` blocks of queries, evenly spread over all, the last one among them. The pattern has blocks. A call has
// one stretch of each document at most, so there are several where a document is sampled here and there.
std::vector<QuerySample> sample_blocks(const Pattern&, const std::vector<Span>& documents, std::int64_t most);

}  // namespace ring
