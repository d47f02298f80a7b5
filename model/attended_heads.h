#pragma once
#include <vector>

#include "kernels/attention/pooled_attention.h"

namespace ring {

// Inputs of attention over whole documents: q [N,Hq,D], k and v [N,Hk,D] as the kernel multiplies them, and the
// selected blocks; and its saved log-sum-exp, f32 [Hq,N].
struct AttendedHeads {
  Tensor q, k, v, lse;
  float scale = 1;  // factor on the scores
  Pattern pattern;
  BlockSelection selection{};
  std::vector<Span> spans{};
  KvHeads heads{};  // heads of this call, counted from the first one that this process selects for (selection_part)
  // The documents. If ranks share the queries, then `spans`, q and lse cover this rank's queries, k has the rows of the
  // whole documents, and v is undefined.
  std::vector<Span> keys{};
  std::vector<PoolWeights> pools{};  // one entry per pool size, for these heads; empty if pools are means
  Tensor pool_gates{};               // f32 [Hq,N], added to the scores of pools; undefined means 0
};

}  // namespace ring
