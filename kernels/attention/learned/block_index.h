#pragma once
// Lightweight indexer of blocks: a few small heads predict how much attention each block of keys gets. They are trained
// on the attention itself (the lightning indexer of DeepSeek-V3.2, 2025, section 2.1, for blocks instead of tokens).

#include <memory>
#include <vector>

#include "kernels/attention/learned/distance_buckets.h"
#include "kernels/attention/pools/block_pool.h"
#include "kernels/attention/selected/block_select.h"

namespace ring {

inline constexpr std::int64_t kMaxIndexHeads = 16, kMaxIndexDim = 128;

// Sizes of the indexer and the columns of its input `projected`, which has one row per block:
//   queries [heads, dim] | one key [dim], shared by all heads | head weights [kv_heads, heads]
struct IndexShape {
  std::int64_t heads = 4, dim = 32;
  std::int64_t kv_heads = 1;               // KV heads of the layer
  std::int64_t first_head = 0, count = 1;  // the KV heads that are scored: [first_head, first_head + count)
  std::int64_t distances = 0;              // number of buckets of the bias by distance (distance_buckets.h); 0: no bias
  std::int64_t key() const { return heads * dim; }            // first column of the key
  std::int64_t weights() const { return (heads + 1) * dim; }  // first column of the head weights
  std::int64_t width() const { return weights() + kv_heads * heads; }
  std::int64_t biases() const { return kv_heads * distances; }
  float scale() const;  // returns 1 / sqrt(heads * dim)
};

// Factor of the bias by distance. Adam changes each parameter by about the learning rate per step. A dot product
// changes faster, since many of its factors change at once, so an unscaled bias would learn too slowly in comparison.
inline constexpr float kDistanceScale = 16;

// scores[i, g, j] = scale sum over heads h of w[i - 1, g, h] relu(q[i - 1, h] . k[j])
//                   + kDistanceScale b[g, bucket of i - j]                              for j < i, else 0
// No token at or after the start of block i influences its scores. For block i of a document, with the document's
// SelectedRows: q and w are in row queries + i - 1 of `projected`, k[j] in row keys + j, and scores[i] is row kept + i.
//   projected  [*, width], f32 or bf16, contiguous.
//   scores     f32 [*, count, blocks], contiguous; whole rows of the documents' blocks are written.
//   biases b   [kv_heads * distances], contiguous, of projected's type; undefined if shape.distances is 0.
// Accumulates in f32.
struct IndexScores {
  Tensor projected, scores;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  Tensor biases{};
};
Cost cost(const IndexScores&);
inline constinit Kernel<IndexScores> index_scores_kernel{"index_scores"};

// dprojected = beta dprojected + gradient, of projected's type, contiguous. For each document (SelectedRows d), writes
// whole rows of blocks [0, d.end), with gradients from the scores of query blocks [d.begin, d.end). Requires
// d.queries = d.keys.
//   kept     i32 [*, count, room]: the blocks that a selection keeps, in lists of capacity `room` (selection.h).
//   dscores  f32 [*, count, room], contiguous: gradients of these blocks' scores; the scores of all other blocks have
//            gradient 0. Only blocks j < i are read.
// relu'(0) = 0.
struct IndexScoresBackward {
  Tensor projected, kept, dscores, dprojected;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  float beta = 0;
};
Cost cost(const IndexScoresBackward&);
inline constinit Kernel<IndexScoresBackward> index_scores_backward_kernel{"index_scores_backward"};

// dbiases[g, n] = beta dbiases[g, n] + kDistanceScale * sum of the score gradients of all (i, j) with i - j in bucket
// n. The sum is 0 for heads that are not scored. dbiases [kv_heads * distances], f32 or bf16, contiguous; kept, dscores
// and documents as in IndexScoresBackward.
struct IndexDistancesBackward {
  Tensor kept, dscores, dbiases;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  float beta = 0;
};
inline Cost cost(const IndexDistancesBackward& a) {
  return cost_of(a.dscores, {a.kept, a.dscores, a.dbiases, a.beta != 0 ? a.dbiases : Tensor{}});
}
inline constinit Kernel<IndexDistancesBackward> index_distances_backward_kernel{"index_distances_backward"};

// The indexer's loss. The candidates of query block i and a KV head with a content rule are the selected blocks j from
// rule.first to i - rule.local. Let p be the mass of attention (block_mass.h), restricted to the candidates and
// normalized to a sum of 1, and s the scores. Per head,
//   KL = sum over candidates j of p_j (log p_j - log softmax(s)_j),  or 0 if the candidates have no mass.
// Blocks are weighted by their tokens:
//   loss[i] = share * (tokens of block i) * sum over heads of KL
//   gradient[i, g, j] = scale * state.loss_scale * share * (tokens of block i) * (softmax(s)_j - p_j), and 0 if j is no
//     candidate
// kept i32 [rows,Hk,room] (selection.h); scores, mass, gradient f32 [rows,Hk,room], in the order of the kept blocks;
// loss f32 [rows]; all contiguous. gradient may be the same tensor as mass; if undefined, it is not computed.
// documents: the segments that were passed to BlockPool (pools/block_pool.h); block j of a document is row out + j.
// Unlike in BlockPool, `leading_gap` may exceed a block: rows of blocks that lie entirely in the gap are left unchanged
// and may be missing.
struct IndexLoss {
  Tensor scores, mass, kept, loss, gradient;
  std::vector<PoolSegment> documents;
  std::shared_ptr<const BlockPattern> blocks;
  float share = 1, scale = 1;
  Tensor state{};  // a StepState in device memory; if undefined, loss_scale is 1
};
inline Cost cost(const IndexLoss& a) { return cost_of(a.scores, {a.scores, a.mass, a.kept, a.loss, a.gradient}); }
inline constinit Kernel<IndexLoss> index_loss_kernel{"index_loss"};

// A selection by scores, and the scores of the kept blocks, f32 [rows,Hk,room], in the order of those blocks.
struct IndexSelection {
  BlockSelection selection;
  Tensor scores;
};
// Scores blocks and selects blocks by these scores, for the query blocks of some documents, which together have `rows`
// consecutive rows. Query blocks are processed in chunks, so that only one chunk's scores exist at a time: at most
// kScoreBytes, or the scores of 32 query blocks if these take more. The chunks do not affect the results. projected,
// biases, shape, documents: as in IndexScores; SelectedRows::kept counts rows of the result.
inline constexpr std::int64_t kScoreBytes = std::int64_t{8} << 20;
IndexSelection select_by_index(const Tensor& projected, const Tensor& biases, const IndexShape&,
                               const std::vector<SelectedRows>& documents, std::int64_t rows,
                               const std::shared_ptr<const BlockPattern>&, const ExecContext&);
// Returns one document for each of these numbers of blocks, with all blocks in consecutive rows.
std::vector<SelectedRows> whole_documents(const std::vector<std::int32_t>& counts);

// Throw Error if shapes or types do not fit, or if a tensor lacks rows of the documents.
void check(const IndexScores&);
void check(const IndexScoresBackward&);
void check(const IndexDistancesBackward&);
void check(const IndexLoss&);

}  // namespace ring
