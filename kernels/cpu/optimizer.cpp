#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/cpu/fp8_moments.h"
#include "kernels/cpu/rows.h"

namespace ring::cpu {
namespace {

double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  double sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t j = 0; j < lanes; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  for (; i < n; ++i) sums[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

void run_squared_norm(const SquaredNorm& args, const ExecContext& ctx) {
  check_numel("squared_norm", "x", args.x, args.x.numel());
  check_numel("squared_norm", "sum", args.sum, 1);
  const float* x = args.x.data<float>();
  ThreadPool& pool = ctx.stream.pool();
  std::vector<double> partial(static_cast<std::size_t>(pool.size()), 0.0);
  pool.parallel_for(args.x.numel(), kPartWork, [&](std::int64_t begin, std::int64_t end, int thread) {
    partial[static_cast<std::size_t>(thread)] = sum_of_squares(x + begin, end - begin);
  });
  double sum = 0;
  for (double p : partial) sum += p;
  float& all = *args.sum.data<float>();
  all = static_cast<float>(static_cast<double>(all) + sum);
}

bool within_limits(const StepState& s) {
  if (!std::isfinite(s.squared_norm) || !std::isfinite(s.loss)) return false;
  return (s.norm_limit <= 0 || std::sqrt(s.squared_norm) <= s.norm_limit) &&
         (s.loss_limit <= 0 || s.loss * s.loss_scale <= s.loss_limit);
}

void run_check_and_clip(const CheckAndClip& args, const ExecContext&) {
  StepState& state = state_of("check_and_clip", args.state);
  if (args.loss.defined()) check_numel("check_and_clip", "loss", args.loss, 1);
  state.loss = args.loss.defined() ? *args.loss.data<float>() : 0.0f;
  if (args.peer_lost && *args.peer_lost != 0) state.peer_lost = 1;
  if (state.peer_lost || !within_limits(state)) state.halted = 1;
  state.accepted = !state.halted;
  state.clip = 1;
  if (args.max_norm > 0 && state.accepted) state.clip = std::min(1.0f, args.max_norm / std::sqrt(state.squared_norm));
}

struct Coefficients {
  float beta1, beta2, rate, scale2, eps, decay, clip;
};
Coefficients coefficients(const AdamW& args, const StepState& state) {
  const double t = static_cast<double>(state.step) + 1, lr = static_cast<double>(state.lr) * args.lr_scale;
  Coefficients c{.beta1 = args.beta1, .beta2 = args.beta2, .eps = args.eps, .clip = state.clip};
  c.rate = static_cast<float>(lr / (1 - std::pow(static_cast<double>(args.beta1), t)));
  c.scale2 = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(args.beta2), t)));
  c.decay = static_cast<float>(1 - lr * (static_cast<double>(args.weight_decay) * state.decay_scale));
  return c;
}

void update(const Coefficients& k, const float* grad, float* param, float* m, float* v, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * k.clip;
    m[i] = k.beta1 * m[i] + (1.0f - k.beta1) * g;
    v[i] = k.beta2 * v[i] + (1.0f - k.beta2) * g * g;
    param[i] = k.decay * param[i] - k.rate * m[i] / (std::sqrt(v[i]) * k.scale2 + k.eps);
  }
}

void update_fp8(const AdamW& args, const Coefficients& k, std::uint32_t step, const ExecContext& ctx) {
  constexpr std::uint64_t target_m = 1, target_v = 2;
  const Fp8Moments<Fp8Moment::e4m3> all_m(args.m, args.m_scales, args.site, step, args.first_element, target_m);
  const Fp8Moments<Fp8Moment::e4m4> all_v(args.v, args.v_scales, args.site, step, args.first_element, target_v);
  float* const param = args.param.data<float>();
  const float* const grad = args.grad.data<float>();
  const std::int64_t n = args.param.numel();
  ctx.stream.pool().parallel_for(moment_blocks(n), row_grain(16 * kMomentBlock),
                                 [=](std::int64_t begin, std::int64_t end, int) {
                                   for (std::int64_t b = begin; b < end; ++b) {
                                     const std::int64_t i = b * kMomentBlock;
                                     float m[kMomentBlock], v[kMomentBlock];
                                     all_m.read(b, m);
                                     all_v.read(b, v);
                                     update(k, grad + i, param + i, m, v, std::min(kMomentBlock, n - i));
                                     all_m.write(b, m);
                                     all_v.write(b, v);
                                   }
                                 });
}

void run_adamw(const AdamW& args, const ExecContext& ctx) {
  const StepState& state = state_of("adamw", args.state);
  const std::int64_t n = args.param.numel();
  check_numel("adamw", "param", args.param, n);
  check_numel("adamw", "grad", args.grad, n);
  check_numel("adamw", "m", args.m, n);
  check_numel("adamw", "v", args.v, n);
  RING_CHECK(args.m.dtype() == args.v.dtype(), "adamw: m is ", describe(args.m), ", v is ", describe(args.v));
  check_fp8_moments("adamw", args.m, args.m_scales);
  check_fp8_moments("adamw", args.v, args.v_scales);
  RING_CHECK(!args.weights.defined(), "adamw: the CPU keeps weights in f32 and writes no bf16 copy");
  if (!state.accepted) return;
  const Coefficients k = coefficients(args, state);
  if (args.m.dtype() == DType::u8) return update_fp8(args, k, state.step, ctx);
  float *param = args.param.data<float>(), *m = args.m.data<float>(), *v = args.v.data<float>();
  const float* grad = args.grad.data<float>();
  ctx.stream.pool().parallel_for(n, kPartWork / 4, [=](std::int64_t begin, std::int64_t end, int) {
    update(k, grad + begin, param + begin, m + begin, v + begin, end - begin);
  });
}

const bool added[] = {
    squared_norm_kernel.add(Backend::cpu, {"simd", run_squared_norm}),
    check_and_clip_kernel.add(Backend::cpu, {"scalar", run_check_and_clip}),
    adamw_kernel.add(Backend::cpu, {"simd", run_adamw}),
};

}  // namespace
}  // namespace ring::cpu
