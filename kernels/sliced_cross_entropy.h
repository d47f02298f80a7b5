#pragma once
#include "kernels/cross_entropy.h"

namespace ring {

// Vocabulary-parallel cross-entropy: the columns of the logits are sharded over several processes. Each process
// computes the statistics of its columns, the processes exchange their statistics, and each process writes the gradient
// of its columns. The results equal CrossEntropy (kernels/cross_entropy.h).
//   logits   [n,W], f32 or bf16: columns [first, first + W) of a vocabulary of `vocab` columns. Columns at or beyond
//            `vocab` are padding; all columns of a process may be padding.
//   targets  [n] i32, as in CrossEntropy.

inline constexpr std::int64_t kLogitStatistics = 3;

// out [n,3] f32, for each row: the largest logit m, the sum of exp(logit - m), and the target's logit if its column is
// here, else 0. If all columns are padding, m is below every possible logit and the sum is 0. If the target is ignored,
// all three are 0.
struct LogitStatistics {
  Tensor logits, targets, out;
  std::int64_t first = 0, vocab = 0;
};
inline Cost cost(const LogitStatistics& a) { return cost_of(a.logits, {a.logits, a.targets, a.out}); }
inline constinit Kernel<LogitStatistics> logit_statistics_kernel{"logit_statistics"};

// statistics [parts,n,3] f32: LogitStatistics::out of all processes, merged in this order, so that all processes get
// bit-identical results. loss, correct, weights, scale, z_loss, gradient, state: as in CrossEntropy.
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

// Returns how many of the columns [first, first + width) are not padding.
inline std::int64_t columns_in_use(std::int64_t width, std::int64_t first, std::int64_t vocab) {
  return std::clamp<std::int64_t>(vocab - first, 0, width);
}

// Throw Error if shapes do not fit.
void check(const LogitStatistics&);
void check(const SlicedCrossEntropy&);

}  // namespace ring
