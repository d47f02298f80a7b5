#pragma once
// Who makes selections by content (MoBA: Lu et al. 2025, section 2.2, and InfLLM-V2: Zhao et al. 2025, choose blocks by
// pooled keys for each query; here a whole block of queries shares its choice, which must not look ahead).

#include <memory>

#include "kernels/attention/blocks.h"
#include "kernels/kernel.h"

namespace ring {

// One document: where its block 0 is in each tensor (or would be: a base may lie outside), and the blocks of queries
// that are selected for.
struct SelectedRows {
  std::int32_t queries = 0, keys = 0, bits = 0;
  std::int32_t begin = 0, end = 0;
};

// bits[i, head]: the blocks of keys that block i of queries keeps, as BlockSelection has them. With a rule of content:
// i itself, the newest `local`, the `first`, and of the others before i, the candidates, until `keep` are kept, those j
// with the largest
//   s_j = queries[i - 1, head] . keys[j, head]
// of equal ones the lower j, and none whose score is NaN. So nothing that follows the start of block i decides on it.
// With a mass below 1 it is the shortest row of the best, one at least and no more than these, with
//   sum of exp(scale s_j) over them >= mass (the same sum over all candidates that are no NaN)
// (as FlexPrefill: Lai et al. 2025, and XAttention: Xu et al. 2025, take blocks until their estimated weights reach a
// share; here with a cap). Where the largest score is infinite, those equal to it share all of the sum.
// Heads of other rules: what the rule keeps up to i.
// queries, keys f32 [*,Hk,D], contiguous: means by block (block_pool.h); bits i32 [*,Hk,words], of which whole rows are
// written. With scores f32 [*,Hk,blocks], contiguous, row i of them (where row i of bits is, too) takes the place of
// the products; queries and keys are then undefined.
struct BlockSelect {
  Tensor queries, keys, bits;
  std::vector<SelectedRows> documents;
  std::shared_ptr<const BlockPattern> blocks;
  Tensor scores{};
  float scale = 1;  // above 0; of a mass below 1 alone
};
Cost cost(const BlockSelect&);
inline constinit Kernel<BlockSelect> block_select_kernel{"block_select"};

// What makes a score of attention's of a product of means: queries are the sum over a group's heads, attention's score
// is scale q.k, its mean over these heads.
inline float scale_of_means(float scale, std::int64_t heads, std::int64_t kv_heads) {
  return scale / static_cast<float>(heads / kv_heads);
}

// Error: shapes, or blocks that one of the tensors does not have.
void check(const BlockSelect&);

}  // namespace ring
