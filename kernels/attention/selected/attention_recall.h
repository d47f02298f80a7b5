#pragma once
// Metrics of block patterns, logged every train.diagnostics_interval steps: how many pairs they keep, and what share of
// dense attention these pairs have.

#include <vector>

#include "kernels/attention/pattern.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// The share of a query's dense attention that the kept pairs have: exp(kept - dense), given the log-sum-exps over the
// kept pairs and over all pairs. kept, dense f32 [Hq,N], contiguous. out f32 [N,2Hq], contiguous: Hq shares, then Hq
// flags: 1 if `dense` is finite; else 0, with share 0.
struct AttentionRecall {
  Tensor kept, dense, out;
};
inline Cost cost(const AttentionRecall& a) { return cost_of(a.out, {a.kept, a.dense, a.out}); }
inline constinit Kernel<AttentionRecall> attention_recall_kernel{"attention_recall"};
void check(const AttentionRecall&);  // throws Error, naming the tensor, if shapes do not fit

// Counts pairs per query block, summed over all KV heads: out[r, 0] = pairs that the selection keeps, out[r, 1] = pairs
// of causal dense attention, with r the selection's row of the query block. out f32 [rows,2]; rows of other blocks are
// left unchanged. No two spans of `queries` may be in the same block; `keys` are their whole documents.
struct SelectedPairs {
  BlockSelection selection;
  Tensor out;
  std::vector<Span> queries, keys;
  Pattern pattern;
};
inline Cost cost(const SelectedPairs& a) { return cost_of(a.out, {a.selection.kept, a.out}); }
inline constinit Kernel<SelectedPairs> selected_pairs_kernel{"selected_pairs"};
// Throws Error if shapes do not fit, if the selection lacks some of the spans, or if keys are not whole documents.
void check(const SelectedPairs&);

// The spans of one attention call: some queries of documents, and all keys of the same documents.
struct QuerySample {
  std::vector<Span> queries, keys;
};
// Samples at most `max` query blocks, evenly spaced over all documents and including the last. Requires a pattern with
// blocks. A sample has at most one run of blocks of each document, so several are returned if a document has more.
std::vector<QuerySample> sample_blocks(const Pattern&, const std::vector<Span>& documents, std::int64_t max);

}  // namespace ring
