#pragma once
#include "kernels/cross_entropy.h"

namespace ring {

// Softmax cross-entropy of rows of logits whose columns are cut over several processes: each finds the statistics of
// its columns, they are exchanged, and each writes the gradient of its columns. Together they compute CrossEntropy.
// logits [n,W], f32 or bf16, hold columns [first, first + W) of a vocabulary of `vocab`; those at or behind its end are
// padding, and may be all of them. targets [n] i32, as in CrossEntropy.

inline constexpr std::int64_t kLogitStatistics = 3;

// out [n,3] f32, for each row: the largest logit m, sum of exp(logit - m), and the target's logit where it is here,
// else 0. Without a column in use: m is below every logit, the sum 0. An ignored target: zeros.
struct LogitStatistics {
  Tensor logits, targets, out;
  std::int64_t first = 0, vocab = 0;
};
inline Cost cost(const LogitStatistics& a) { return cost_of(a.logits, {a.logits, a.targets, a.out}); }
inline constinit Kernel<LogitStatistics> logit_statistics_kernel{"logit_statistics"};

// statistics [parts,n,3] f32: those of all processes, merged in this order, so that all find the same bits. loss,
// correct, weights, scale, z_loss, gradient, state: as in CrossEntropy.
struct SlicedCrossEntropy {
  Tensor logits, targets, weights, statistics, loss, correct;
  std::int64_t first = 0, vocab = 0;
  float scale = 1, z_loss = 0;
  bool gradient = true;
  Tensor state;
};
inline Cost cost(const SlicedCrossEntropy& a) {
  const Tensor moved = a.gradient ? a.logits : Tensor{};
  return cost_of(a.logits, {moved, moved, a.targets, a.weights, a.statistics, a.loss, a.correct});
}
inline constinit Kernel<SlicedCrossEntropy> sliced_cross_entropy_kernel{"sliced_cross_entropy"};

// Columns of these logits that are in use.
inline std::int64_t columns_in_use(std::int64_t width, std::int64_t first, std::int64_t vocab) {
  return std::clamp<std::int64_t>(vocab - first, 0, width);
}

// Error: shapes that do not fit.
void check(const LogitStatistics&);
void check(const SlicedCrossEntropy&);

}  // namespace ring
