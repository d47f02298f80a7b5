#pragma once
#include "kernels/attention/selection.h"

namespace ring {

// What attention is computed from, q [N,Hq,D], k and v [N,Hk,D] as they are multiplied, the blocks that were selected,
// and the log-sum-exp that it keeps, f32 [Hq,N].
struct AttendedHeads {
  Tensor q, k, v, lse;
  float scale = 1;  // of scores
  Pattern pattern;
  BlockSelection selection{};
};

}  // namespace ring
