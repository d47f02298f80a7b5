#pragma once
#include <vector>

#include "kernels/attention/pools/pooled_attention.h"

namespace ring {

// One call of attention over whole documents: q [N,Hq,D], k and v [N,Hk,D] as passed to the attention kernel, the
// selected blocks, and the saved log-sum-exp `lse`, f32 [Hq,N].
struct AttendedHeads {
  Tensor q, k, v, lse;
  float scale = 1;  // factor on the scores
  Pattern pattern;
  BlockSelection selection{};
  std::vector<Span> spans{};
  KvHeads heads{};  // KV heads of this call, counted from the process's first head (selection_part())
  // Documents in the rows of k. If ranks share the queries, then `spans`, q and lse cover only this rank's queries, k
  // has the rows of the whole documents, and v is undefined.
  std::vector<Span> keys{};
  std::vector<PoolWeights> pools{};  // one entry per pool size, for these heads; empty if pools are means
  Tensor pool_gates{};               // f32 [Hq,N], added to the scores of pools; undefined means 0
};

}  // namespace ring
