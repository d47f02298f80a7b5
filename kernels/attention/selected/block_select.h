#pragma once
// Selects blocks by content. MoBA (Lu et al. 2025, section 2.2) and InfLLM-V2 (Zhao et al. 2025) choose blocks by
// pooled keys for each query. Here all queries of a block share one choice, so it must not depend on tokens of the
// block.

#include <memory>

#include "kernels/attention/blocks.h"
#include "kernels/attention/selection.h"
#include "kernels/kernel.h"

namespace ring {

// One document: the row of its block 0 in each tensor, and the query blocks [begin, end) to select for. The row may be
// out of range if block 0 is not used.
struct SelectedRows {
  std::int32_t queries = 0, keys = 0, kept = 0;
  std::int32_t begin = 0, end = 0;
};

// Writes kept[i, head]: the key blocks that query block i keeps, in the layout of BlockSelection. A head with a content
// rule keeps block i, the newest `local` blocks and the first `first` blocks. The other blocks before i are candidates,
// of which the best are added until `keep` blocks are kept. Candidates are ranked by the score
//   s_j = queries[i - 1, head] . keys[j, head]
// Ties go to the lower j. Candidates whose score is NaN are never kept. No token at or after the start of block i
// affects the choice.
// With a rule.mass below 1, keeps only the shortest nonempty prefix of the chosen candidates, best first, with
//   sum over the prefix of exp(scale s_j) >= mass * sum over all candidates without NaN of exp(scale s_j)
// (FlexPrefill, Lai et al. 2025, and XAttention, Xu et al. 2025, also take blocks until their estimated weights reach a
// share, without the cap `keep`). If the largest score is infinite, the candidates equal to it share the whole sum.
// A head with another rule keeps the blocks up to i that the rule keeps.
//   queries, keys  f32 [*,Hk,D], contiguous: means per block (pools/block_pool.h).
//   kept           i32 [*,Hk,room], contiguous, with capacity room >= max_kept_blocks(); whole rows are written.
//   scores         f32 [*,Hk,blocks], contiguous, in the same rows as kept: if defined, they replace the dot products,
//                  and queries and keys are undefined.
//   kept_scores    f32 [*,Hk,room], contiguous: if defined, receives the scores of the kept blocks, followed by zeros.
//                  Requires scores.
struct BlockSelect {
  Tensor queries, keys, kept;
  std::vector<SelectedRows> documents;
  std::shared_ptr<const BlockPattern> blocks;
  Tensor scores{};
  float scale = 1;  // above 0; used only with a mass below 1
  Tensor kept_scores{};
};
Cost cost(const BlockSelect&);
inline constinit Kernel<BlockSelect> block_select_kernel{"block_select"};

// Returns BlockSelect::scale for attention with this scale. Block means of queries are summed over the query heads of a
// KV head. Dividing by the number of these heads makes scaled dot products of block means comparable to attention's
// scores scale q.k, averaged over these heads.
inline float scale_of_means(float scale, std::int64_t heads, std::int64_t kv_heads) {
  return scale / static_cast<float>(heads / kv_heads);
}

// Throws Error if shapes do not fit, or if a tensor lacks some of the blocks.
void check(const BlockSelect&);

// Computes the selection of one attention call on the context's stream. q [N,Hq,D], k [N,Hk,D] and scale are those of
// the call; the spans are whole documents. Returns an empty selection if the pattern does not select. No gradient flows
// through the selection. room: minimum capacity of the selection's lists; the lists are made larger if they need more
// (max_kept_blocks()).
BlockSelection select_blocks(const Pattern&, const Tensor& q, const Tensor& k, float scale, const std::vector<Span>&,
                             const ExecContext&, std::int64_t room = 1);

}  // namespace ring
