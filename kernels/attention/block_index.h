#pragma once
// A light indexer of blocks (the lightning indexer of DeepSeek-V3.2, 2025, section 2.1, for blocks in place of tokens):
// few small heads guess how much attention a block of keys gets, and learn it from the attention itself.

#include <memory>

#include "kernels/attention/block_pool.h"
#include "kernels/attention/block_select.h"
#include "kernels/attention/distance_buckets.h"

namespace ring {

inline constexpr std::int64_t kMostIndexHeads = 16, kMostIndexDim = 128;

// The columns of what the indexer is made of, one row for each block: queries of `heads` heads | one key that they
// share | weights of `heads` for each of the layer's KV heads.
struct IndexShape {
  std::int64_t heads = 4, dim = 32;
  std::int64_t kv_heads = 1;               // of the layer
  std::int64_t first_head = 0, count = 1;  // the KV heads that are scored
  std::int64_t distances = 0;              // buckets (distance_buckets.h) of a bias by distance; 0: there is none
  std::int64_t key() const { return heads * dim; }
  std::int64_t weights() const { return (heads + 1) * dim; }
  std::int64_t width() const { return weights() + kv_heads * heads; }
  std::int64_t biases() const { return kv_heads * distances; }
  float scale() const;  // 1 / sqrt(heads dim)
};

// What a bias by distance counts for. Optimizers such as Adam change each number by about the learning rate, a score's
// products by many at once: a bias alone would be too slow.
inline constexpr float kDistanceScale = 16;

// scores[i, g, j] = scale sum over heads h of w[i - 1, g, h] relu(q[i - 1, h] . k[j])
//                   + kDistanceScale b[g, bucket of i - j]                              for j < i, else 0
// so that nothing behind the start of block i decides on it. projected [*, width], f32 or bf16, contiguous; scores f32
// [*, count, blocks], contiguous, of which the rows of the documents are written whole: of block i row bits + i, by the
// rows queries + i - 1 and keys + j of `projected`. b [kv_heads * distances], contiguous, of projected's type;
// undefined where the shape has no distances. Sums are f32.
struct IndexScores {
  Tensor projected, scores;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  Tensor biases{};
};
Cost cost(const IndexScores&);
inline constinit Kernel<IndexScores> index_scores_kernel{"index_scores"};

// dprojected = beta dprojected + gradient, of projected's type; contiguous, whole rows of the documents. Documents are
// whole (begin 0), with the same rows of queries, keys and scores. dscores[i, g, j] counts for j < i. relu'(0) = 0.
struct IndexScoresBackward {
  Tensor projected, dscores, dprojected;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  float beta = 0;
};
Cost cost(const IndexScoresBackward&);
inline constinit Kernel<IndexScoresBackward> index_scores_backward_kernel{"index_scores_backward"};

// dbiases[g, n] = beta dbiases[g, n] + kDistanceScale sum of dscores[i, g, j] over all i - j of bucket n, which is 0
// for heads that are not scored. dbiases [kv_heads * distances], f32 or bf16, contiguous; dscores and documents as
// above.
struct IndexDistancesBackward {
  Tensor dscores, dbiases;
  IndexShape shape;
  std::vector<SelectedRows> documents;
  float beta = 0;
};
inline Cost cost(const IndexDistancesBackward& a) {
  return cost_of(a.dscores, {a.dscores, a.dbiases, a.beta != 0 ? a.dbiases : Tensor{}});
}
inline constinit Kernel<IndexDistancesBackward> index_distances_backward_kernel{"index_distances_backward"};

// The indexer's loss. The candidates of block i of queries and a KV head with a rule of content are the blocks j from
// rule.first to i - rule.local that the selection has. With p the mass of attention (block_mass.h) and s the scores,
//   KL = sum p_j (log p_j - log softmax(s)_j),    p restricted to the candidates and divided by its sum,
// 0 where that sum is 0. Tokens count, not blocks: loss[i] = share (tokens of block i) sum over heads of KL.
//   gradient[i, g, j] = scale state.loss_scale share (tokens of block i) (softmax(s)_j - p_j), 0 but for candidates
// scores, mass, gradient f32 [rows,Hk,blocks]; bits i32 [rows,Hk,words] (selection.h); loss f32 [rows]; all contiguous.
// gradient may be mass; undefined: not wanted. Documents as they were pooled: block j of one is row out + j. Blocks all
// of whose rows are skipped, here as many as there may be, are left as they are.
struct IndexLoss {
  Tensor scores, mass, bits, loss, gradient;
  std::vector<PooledRows> documents;
  std::shared_ptr<const BlockPattern> blocks;
  float share = 1, scale = 1;
  Tensor state{};  // a StepState in device memory; undefined: a loss_scale of 1
};
inline Cost cost(const IndexLoss& a) { return cost_of(a.scores, {a.scores, a.mass, a.bits, a.loss, a.gradient}); }
inline constinit Kernel<IndexLoss> index_loss_kernel{"index_loss"};

// Error: shapes, types, or rows that one of the tensors does not have.
void check(const IndexScores&);
void check(const IndexScoresBackward&);
void check(const IndexDistancesBackward&);
void check(const IndexLoss&);

}  // namespace ring
