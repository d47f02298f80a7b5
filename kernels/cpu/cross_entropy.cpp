#include "kernels/cross_entropy.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kWork = 8;  // cost of one element, in simple elements of 0.2 ns (kPartWork)

// Returns the maximum, log-sum-exp and sum of exp(x - max) of a row. If `keep`, replaces the row by exp(x - max).
struct LogSum {
  float max, lse, sum;
};
LogSum log_sum(float* x, std::int64_t vocab, bool keep) {
  const float max = max_of(vocab, [=](std::int64_t v) { return x[v]; });
  if (keep) {
#pragma GCC ivdep
    for (std::int64_t v = 0; v < vocab; ++v) x[v] = exp_fast(x[v] - max);
  }
  const float sum = keep ? sum_of(vocab, [=](std::int64_t v) { return x[v]; })
                         : sum_of(vocab, [=](std::int64_t v) { return exp_fast(x[v] - max); });
  return {max, max + std::log(sum), sum};
}

// The loss of a row with a target. correct: true if no logit is larger than the logit of the target.
struct RowLoss {
  float loss;
  bool correct;
};
RowLoss row_loss(const CrossEntropy& args, float step_scale, float* x, std::int64_t width, std::int32_t target,
                 float weight) {
  const float at_target = x[target];
  const LogSum s = log_sum(x, args.vocab, args.gradient);
  if (args.gradient) {
    const float scale = args.scale * step_scale * weight;
    const float factor = scale * (1.0f + 2.0f * args.z_loss * s.lse) / s.sum;
#pragma GCC ivdep
    for (std::int64_t v = 0; v < args.vocab; ++v) x[v] *= factor;
    x[target] -= scale;
    std::fill(x + args.vocab, x + width, 0.0f);
  }
  return {weight * (s.lse - at_target + args.z_loss * s.lse * s.lse), at_target >= s.max};
}

void check_args(const CrossEntropy& args, std::int64_t rows, std::int64_t width) {
  RING_CHECK(args.vocab > 0 && args.vocab <= width, "cross_entropy: vocab ", args.vocab, " of ", width, " columns");
  check_numel("cross_entropy", "targets", args.targets, rows);
  check_numel("cross_entropy", "loss", args.loss, rows);
  if (args.weights.defined()) check_numel("cross_entropy", "weights", args.weights, rows);
  if (args.correct.defined()) check_numel("cross_entropy", "correct", args.correct, rows);
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  for (std::int64_t n = 0; n < rows; ++n)
    if (targets[n] != kIgnoreTarget && (targets[n] < 0 || targets[n] >= args.vocab))
      fail("cross_entropy: target ", targets[n], " at position ", n, " is outside of the vocabulary of ", args.vocab,
           " (", kIgnoreTarget, " ignores a token)");
}

void run_cross_entropy(const CrossEntropy& args, const ExecContext& ctx) {
  const Rows logits = rows_of("cross_entropy", "logits", args.logits);
  check_args(args, logits.count, logits.width);
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  const float* weights = args.weights.defined() ? args.weights.data<float>() : nullptr;
  float* loss = args.loss.data<float>();
  float* correct = args.correct.defined() ? args.correct.data<float>() : nullptr;
  const float step_scale = args.state.defined() ? gradient_scale(state_of("cross_entropy", args.state)) : 1.0f;
  ctx.stream.pool().parallel_for(logits.count, row_grain(kWork * logits.width), [&](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      float* x = logits[n];
      if (targets[n] != kIgnoreTarget) {
        const RowLoss row = row_loss(args, step_scale, x, logits.width, targets[n], weights ? weights[n] : 1.0f);
        loss[n] = row.loss;
        if (correct) correct[n] = row.correct;
        continue;
      }
      loss[n] = 0;
      if (correct) correct[n] = 0;
      if (args.gradient) std::fill(x, x + logits.width, 0.0f);
    }
  });
}

const bool added = cross_entropy_kernel.add(Backend::cpu, {"rows", run_cross_entropy});

}  // namespace
}  // namespace ring::cpu
