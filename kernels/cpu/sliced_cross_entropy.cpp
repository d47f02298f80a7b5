#include "kernels/sliced_cross_entropy.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kWork = 8;  // cost of one element, in simple elements of 0.2 ns (kPartWork)

void check_targets(const char* op, const std::int32_t* targets, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t n = 0; n < rows; ++n)
    if (targets[n] != kIgnoreTarget && (targets[n] < 0 || targets[n] >= vocab))
      fail(op, ": target ", targets[n], " at position ", n, " is outside of the vocabulary of ", vocab, " (",
           kIgnoreTarget, " ignores a token)");
}

void run_statistics(const LogitStatistics& args, const ExecContext& ctx) {
  check(args);
  const Rows logits = rows_of("logit_statistics", "logits", args.logits);
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  check_targets("logit_statistics", targets, logits.count, args.vocab);
  const std::int64_t columns = columns_in_use(logits.width, args.first, args.vocab);
  ctx.stream.pool().parallel_for(logits.count, row_grain(kWork * logits.width), [&](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* x = logits[n];
      float* out = args.out.data<float>() + n * kLogitStatistics;
      std::fill(out, out + kLogitStatistics, 0.0f);
      if (targets[n] == kIgnoreTarget) continue;
      const float max = max_of(columns, [=](std::int64_t v) { return x[v]; });
      out[0] = max;
      out[1] = sum_of(columns, [=](std::int64_t v) { return exp_fast(x[v] - max); });
      const std::int64_t at = targets[n] - args.first;
      if (at >= 0 && at < columns) out[2] = x[at];
    }
  });
}

struct Merged {
  float max, sum, target;
};
Merged merge(const Tensor& statistics, std::int64_t row) {
  const std::int64_t parts = statistics.dim(0), stride = statistics.dim(1) * kLogitStatistics;
  const float* of_row = statistics.data<float>() + row * kLogitStatistics;
  Merged m{of_row[0], 0, 0};
  for (std::int64_t p = 1; p < parts; ++p) m.max = std::max(m.max, of_row[p * stride]);
  for (std::int64_t p = 0; p < parts; ++p) {
    m.sum += of_row[p * stride + 1] * exp_fast(of_row[p * stride] - m.max);
    m.target += of_row[p * stride + 2];
  }
  return m;
}

void run_loss(const SlicedCrossEntropy& args, const ExecContext& ctx) {
  check(args);
  const Rows logits = rows_of("sliced_cross_entropy", "logits", args.logits);
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  check_targets("sliced_cross_entropy", targets, logits.count, args.vocab);
  const std::int64_t columns = columns_in_use(logits.width, args.first, args.vocab);
  const float step_scale = args.state.defined() ? gradient_scale(state_of("sliced_cross_entropy", args.state)) : 1.0f;
  ctx.stream.pool().parallel_for(logits.count, row_grain(kWork * logits.width), [&](auto begin, auto end, int) {
    for (std::int64_t n = begin; n < end; ++n) {
      float* x = logits[n];
      float& loss = args.loss.data<float>()[n];
      float* correct = args.correct.defined() ? args.correct.data<float>() + n : nullptr;
      if (targets[n] == kIgnoreTarget) {
        loss = 0;
        if (correct) *correct = 0;
        if (args.gradient) std::fill(x, x + logits.width, 0.0f);
        continue;
      }
      const Merged m = merge(args.statistics, n);
      const float lse = m.max + std::log(m.sum), weight = args.weights.defined() ? args.weights.data<float>()[n] : 1.0f;
      loss = weight * (lse - m.target + args.z_loss * lse * lse);
      if (correct) *correct = m.target >= m.max;
      if (!args.gradient) continue;
      const float scale = args.scale * step_scale * weight;
      const float factor = scale * (1.0f + 2.0f * args.z_loss * lse) / m.sum, max = m.max;
#pragma GCC ivdep
      for (std::int64_t v = 0; v < columns; ++v) x[v] = exp_fast(x[v] - max) * factor;
      const std::int64_t at = targets[n] - args.first;
      if (at >= 0 && at < columns) x[at] -= scale;
      std::fill(x + columns, x + logits.width, 0.0f);
    }
  });
}

const bool added[] = {
    logit_statistics_kernel.add(Backend::cpu, {"rows", run_statistics}),
    sliced_cross_entropy_kernel.add(Backend::cpu, {"rows", run_loss}),
};

}  // namespace
}  // namespace ring::cpu
