#include "kernels/sliced_cross_entropy.h"

#include "kernels/rows.h"

namespace ring {
namespace {

void check_common(const char* op, const Tensor& logits, const Tensor& targets, std::int64_t first, std::int64_t vocab) {
  RING_CHECK(logits.defined() && logits.shape().size() == 2, op, ": logits are ", describe(logits), ", expected [n,W]");
  RING_CHECK(first >= 0 && vocab > 0, op, ": columns from ", first, " on of a vocabulary of ", vocab);
  check_numel(op, "targets", targets, logits.dim(0));
}

}  // namespace

void check(const LogitStatistics& a) {
  check_common("logit_statistics", a.logits, a.targets, a.first, a.vocab);
  check_shape("logit_statistics", "out", a.out, {a.logits.dim(0), kLogitStatistics});
  check_numel("logit_statistics", "out", a.out, a.out.numel());
}

void check(const SlicedCrossEntropy& a) {
  const char* op = "sliced_cross_entropy";
  check_common(op, a.logits, a.targets, a.first, a.vocab);
  const std::int64_t rows = a.logits.dim(0);
  RING_CHECK(a.statistics.defined() && a.statistics.shape().size() == 3 && a.statistics.is_contiguous() &&
                 a.statistics.dim(1) == rows && a.statistics.dim(2) == kLogitStatistics,
             op, ": statistics are ", describe(a.statistics), ", expected [parts,", rows, ",", kLogitStatistics, "]");
  check_numel(op, "loss", a.loss, rows);
  if (a.weights.defined()) check_numel(op, "weights", a.weights, rows);
  if (a.correct.defined()) check_numel(op, "correct", a.correct, rows);
}

}  // namespace ring
