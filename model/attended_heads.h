#pragma once
#include <vector>

#include "kernels/attention/pooled_attention.h"

namespace ring {

// What attention over whole documents is computed from, q [N,Hq,D], k and v [N,Hk,D] as they are multiplied, the blocks
// that were selected, and the log-sum-exp that it keeps, f32 [Hq,N].
struct AttendedHeads {
  Tensor q, k, v, lse;
  float scale = 1;  // of scores
  Pattern pattern;
  BlockSelection selection{};
  std::vector<Span> spans{};
  KvHeads heads{};  // of those that this process selects blocks for (selection_part), counted from their first one
  // The documents. Where ranks share the queries, `spans` are those of one rank, as q and lse are, k has the documents'
  // rows, and v is undefined.
  std::vector<Span> keys{};
  std::vector<PoolWeights> pools{};  // by size, of these heads; none: pools are means
  Tensor pool_gates{};               // f32 [Hq,N], added to the scores of pools; undefined: 0
};

}  // namespace ring
