#pragma once
#include <vector>

#include "kernels/attention/selection.h"

namespace ring {

// What attention over whole documents is computed from, q [N,Hq,D], k and v [N,Hk,D] as they are multiplied, the blocks
// that were selected, and the log-sum-exp that it keeps, f32 [Hq,N].
struct AttendedHeads {
  Tensor q, k, v, lse;
  float scale = 1;  // of scores
  Pattern pattern;
  BlockSelection selection{};
  std::vector<Span> spans{};
  KvHeads heads{};  // of those that this process has whole sequences of (whole_sequences), counted from their first one
};

}  // namespace ring
