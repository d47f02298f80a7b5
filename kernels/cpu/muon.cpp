#include "kernels/muon.h"

#include <cmath>

#include "kernels/cpu/fp8_moments.h"
#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

// Calls fn(begin, end) for ranges of the n elements of one matrix, divided among the threads.
template <class Fn>
void over_elements(const ExecContext& ctx, std::int64_t n, const Fn& fn) {
  ctx.stream.pool().parallel_for(n, kPartWork / 2, [&](std::int64_t begin, std::int64_t end, int) { fn(begin, end); });
}

// Updates the momentum m of n elements with their gradient, and writes the next update to `update`.
void add_gradient(const MuonMomentum& args, float clip, const float* grad, float* m, float* update, std::int64_t n) {
  const float beta = args.beta;
  const bool nesterov = args.nesterov;
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = clip * grad[i];
    m[i] = beta * m[i] + g;
    update[i] = nesterov ? g + beta * m[i] : m[i];
  }
}

void add_gradient_fp8(const MuonMomentum& args, const StepState& state, const MuonMatrix& matrix, float* update,
                      const ExecContext& ctx) {
  constexpr std::uint64_t target = 1;
  const Fp8Moments<Fp8Moment::e4m3> momentum(matrix.momentum, matrix.momentum_scales, args.site, state.step,
                                             matrix.first_element, target);
  const std::int64_t n = matrix.momentum.numel();
  const float* const grad = matrix.gradient.data<float>();
  ctx.stream.pool().parallel_for(
      moment_blocks(n), row_grain(8 * kMomentBlock), [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t b = begin; b < end; ++b) {
          const std::int64_t i = b * kMomentBlock;
          float m[kMomentBlock];
          momentum.read(b, m);
          add_gradient(args, state.clip, grad + i, m, update + i, std::min(kMomentBlock, n - i));
          momentum.write(b, m);
        }
      });
}

void run_momentum(const MuonMomentum& args, const ExecContext& ctx) {
  const StepState& state = state_of("muon_momentum", args.state);
  const std::int64_t n = check("muon_momentum", args.matrices, args.update);
  if (!state.accepted) return;
  float* update = args.update.data<float>();
  for (const MuonMatrix& matrix : args.matrices) {
    if (matrix.momentum.dtype() == DType::u8) {
      add_gradient_fp8(args, state, matrix, update, ctx);
    } else {
      const float* const grad = matrix.gradient.data<float>();
      float* const m = matrix.momentum.data<float>();
      over_elements(ctx, n, [&](std::int64_t begin, std::int64_t end) {
        add_gradient(args, state.clip, grad + begin, m + begin, update + begin, end - begin);
      });
    }
    update += n;
  }
}

double sum_of_squares(const float* x, std::int64_t n, const ExecContext& ctx) {
  ThreadPool& pool = ctx.stream.pool();
  std::vector<double> parts(static_cast<std::size_t>(pool.size()), 0.0);
  pool.parallel_for(n, kPartWork, [&](std::int64_t begin, std::int64_t end, int thread) {
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    parts[static_cast<std::size_t>(thread)] = sum;
  });
  double sum = 0;
  for (const double p : parts) sum += p;
  return sum;
}

void run_unit_norm(const UnitNorm& args, const ExecContext& ctx) {
  RING_CHECK(args.x.is_contiguous() && args.x.dim(0) > 0, "unit_norm: of ", describe(args.x));
  const std::int64_t n = args.x.numel() / args.x.dim(0);
  for (std::int64_t b = 0; b < args.x.dim(0); ++b) {
    float* x = args.x.data<float>() + b * n;
    const auto factor = static_cast<float>(1 / (std::sqrt(sum_of_squares(x, n, ctx)) + static_cast<double>(args.eps)));
    over_elements(ctx, n, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) x[i] *= factor;
    });
  }
}

void run_apply(const MuonApply& args, const ExecContext& ctx) {
  const StepState& state = state_of("muon_apply", args.state);
  const std::int64_t n = check("muon_apply", args.matrices, args.update);
  if (!state.accepted) return;
  const double lr = static_cast<double>(state.lr) * args.lr_scale;
  const auto decay = static_cast<float>(1 - lr * (static_cast<double>(args.weight_decay) * state.decay_scale)),
             rate = static_cast<float>(lr * args.scale);
  const float* update = args.update.data<float>();
  for (const MuonMatrix& matrix : args.matrices) {
    RING_CHECK(!matrix.weights.defined(), "muon_apply: the CPU keeps weights in f32 and writes no bf16 copy");
    float* w = matrix.values.data<float>();
    over_elements(ctx, n, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) w[i] = decay * w[i] - rate * update[i];
    });
    update += n;
  }
}

const bool added[] = {
    muon_momentum_kernel.add(Backend::cpu, {"simd", run_momentum}),
    unit_norm_kernel.add(Backend::cpu, {"simd", run_unit_norm}),
    muon_apply_kernel.add(Backend::cpu, {"simd", run_apply}),
};

}  // namespace
}  // namespace ring::cpu
