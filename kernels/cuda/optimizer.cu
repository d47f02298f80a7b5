#include "kernels/optimizer.h"

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

StepState* state_of(std::string_view op, const Tensor& state) {
  RING_CHECK(state.defined() && state.bytes() >= sizeof(StepState), op, ": state is ", describe(state), ", expected ",
             sizeof(StepState), " bytes");
  return reinterpret_cast<StepState*>(state.data<std::uint8_t>());
}

// Partial sums of a norm: their number is a constant, so that the order of summation does not depend on the device.
constexpr int kParts = 1024;

__global__ void squares_f32(const float* x, std::int64_t n, double* parts) {
  double sum = 0;
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    const Quad q = load(x, i, n);
    for (float v : q.v) sum += static_cast<double>(v) * static_cast<double>(v);
  }
  sum = group_sum<kBlock>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void add_squares(const double* parts, int count, StepState* state) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) sum += parts[i];
  sum = group_sum<kBlock>(sum);
  if (threadIdx.x == 0) state->squared_norm = static_cast<float>(static_cast<double>(state->squared_norm) + sum);
}

void run_squared_norm(const SquaredNorm& args, const Context& ctx) {
  StepState* state = state_of("squared_norm", args.state);
  const std::int64_t n = args.x.numel();
  check_numel("squared_norm", "x", args.x, n);
  const auto count = static_cast<int>(std::min<std::int64_t>(kParts, divide_up(n, 4 * kBlock)));
  const Tensor parts = ctx.empty({count * static_cast<std::int64_t>(sizeof(double))}, DType::u8);
  double* sums = reinterpret_cast<double*>(parts.raw());
  launch(ctx, {grid_of(count)}, squares_f32, args.x.data<float>(), n, sums);
  launch(ctx, {grid_of(1)}, add_squares, sums, count, state);
}

__global__ void clip_factor_f32(StepState* state, float max_norm) {
  const float square = state->squared_norm;
  state->finite = isfinite(square);
  state->clip = max_norm > 0 && isfinite(square) ? fminf(1.0f, max_norm / sqrtf(square)) : 1.0f;
}

void run_clip_factor(const ClipFactor& args, const Context& ctx) {
  launch(ctx, {grid_of(1), 1}, clip_factor_f32, state_of("clip_factor", args.state), args.max_norm);
}

struct AdamWPointers {
  float *param, *m, *v;
  const float* grad;
};
struct AdamWSettings {
  float beta1, beta2, eps, weight_decay, lr_scale;
};
struct Coefficients {
  float rate, scale2, decay, clip;
};

__device__ Coefficients coefficients(const AdamWSettings& a, const StepState& state) {
  const double t = static_cast<double>(state.step) + 1, lr = static_cast<double>(state.lr) * a.lr_scale;
  return {static_cast<float>(lr / (1 - pow(static_cast<double>(a.beta1), t))),
          static_cast<float>(1 / sqrt(1 - pow(static_cast<double>(a.beta2), t))),
          static_cast<float>(1 - lr * a.weight_decay), state.clip};
}

__global__ void adamw_f32(AdamWPointers p, AdamWSettings a, const StepState* state, std::int64_t n) {
  if (!state->finite) return;
  __shared__ Coefficients shared;
  if (threadIdx.x == 0) shared = coefficients(a, *state);
  __syncthreads();
  const Coefficients k = shared;
  for (std::int64_t i = 4 * thread_x(); i < n; i += 4 * threads_x()) {
    const Quad grad = load(p.grad, i, n);
    Quad param = load(p.param, i, n), m = load(p.m, i, n), v = load(p.v, i, n);
    for (int j = 0; j < 4; ++j) {
      const float g = grad.v[j] * k.clip;
      m.v[j] = a.beta1 * m.v[j] + (1.0f - a.beta1) * g;
      v.v[j] = a.beta2 * v.v[j] + (1.0f - a.beta2) * g * g;
      param.v[j] = k.decay * param.v[j] - k.rate * m.v[j] / (sqrtf(v.v[j]) * k.scale2 + a.eps);
    }
    store(p.param, i, n, param);
    store(p.m, i, n, m);
    store(p.v, i, n, v);
  }
}

void run_adamw(const AdamW& args, const Context& ctx) {
  const StepState* state = state_of("adamw", args.state);
  const std::int64_t n = args.param.numel();
  check_numel("adamw", "param", args.param, n);
  check_numel("adamw", "grad", args.grad, n);
  check_numel("adamw", "m", args.m, n);
  check_numel("adamw", "v", args.v, n);
  const AdamWPointers p{args.param.data<float>(), args.m.data<float>(), args.v.data<float>(), args.grad.data<float>()};
  const AdamWSettings settings{args.beta1, args.beta2, args.eps, args.weight_decay, args.lr_scale};
  launch(ctx, elements(ctx, n), adamw_f32, p, settings, state, n);
}

const bool added[] = {
    squared_norm_kernel.add(Backend::cuda, {"two_stage", run_squared_norm}),
    clip_factor_kernel.add(Backend::cuda, {"scalar", run_clip_factor}),
    adamw_kernel.add(Backend::cuda, {"f32", run_adamw}),
};

}  // namespace
}  // namespace ring::cuda
