#include "kernels/cuda/fp8_moments.cuh"
#include "kernels/optimizer.h"

namespace ring::cuda {
namespace {

struct Settings {
  float beta1, beta2, eps, weight_decay, lr_scale;
};
// Coefficients of a step, common to all elements. in_m: clip * (1 - beta1), the factor of the gradient in m. in_v: clip
// * sqrt(1 - beta2), the factor of the gradient before it is squared for v.
struct Coefficients {
  float beta1, beta2, in_m, in_v, rate, scale2, eps, decay;
};

__device__ inline double power(double base, std::uint32_t n) {
  double result = 1;
  for (; n != 0; n >>= 1, base *= base)
    if (n & 1) result *= base;
  return result;
}

__device__ Coefficients coefficients(const Settings& a, const StepState& state) {
  const std::uint32_t t = state.step + 1;
  const double lr = static_cast<double>(state.lr) * a.lr_scale;
  return {.beta1 = a.beta1,
          .beta2 = a.beta2,
          .in_m = state.clip * (1.0f - a.beta1),
          .in_v = state.clip * sqrtf(1.0f - a.beta2),
          .rate = static_cast<float>(lr / (1 - power(a.beta1, t))),
          .scale2 = static_cast<float>(1 / sqrt(1 - power(a.beta2, t))),
          .eps = a.eps,
          .decay = static_cast<float>(1 - lr * (static_cast<double>(a.weight_decay) * state.decay_scale))};
}

// Square root and reciprocal in one instruction each, with a relative error of about 2^-22. Subnormal numbers become 0,
// which is harmless: they are far below any eps.
__device__ inline float root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Uses explicit fmaf, so that an element gets identical bits wherever a range begins and ends: otherwise the compiler
// might contract the code for complete and for partial tiles differently.
__device__ inline void update(float& param, float grad, float& m, float& v, const Coefficients& k) {
  const float g = k.in_v * grad;
  m = fmaf(k.beta1, m, k.in_m * grad);
  v = fmaf(g, g, k.beta2 * v);
  param = fmaf(-(k.rate * m), inverse(fmaf(root(v), k.scale2, k.eps)), k.decay * param);
}

// M, V: element types of the two moments (fp8_moments.cuh).
template <class P, class G, class M, class V>
struct Operands {
  Flat<P> param;
  Flat<G> grad;
  Moments<M> m;
  Moments<V> v;
  Flat<__nv_bfloat16> weights;  // weights.data is null if there are no bf16 weights
  const StepState* state;
  RandomSite site;
  std::uint64_t first;  // global index of element 0
  bool aligned;         // true if all pointers are aligned to 16 bytes
};

template <bool whole, class P, class G, class M, class V>
__device__ void step(const Operands<P, G, M, V>& o, const Coefficients& k, std::int64_t i) {
  const Raw<G> raw_grad = o.grad.template read<whole>(i);
  const auto raw_m = o.m.template read<whole>(i);
  const auto raw_v = o.v.template read<whole>(i);
  const Raw<P> raw_param = o.param.template read<whole>(i);
  const Eight grad = unpack(raw_grad);
  Eight param = unpack(raw_param), m = unpack_moments(o.m, raw_m), v = unpack_moments(o.v, raw_v);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < kFour; ++j) update(param.half[h].v[j], grad.half[h].v[j], m.half[h].v[j], v.half[h].v[j], k);
  const std::uint64_t element = o.first + static_cast<std::uint64_t>(i);
  write_new<whole>(o.m, i, m, o.site, element, Target::m);
  write_new<whole>(o.v, i, v, o.site, element, Target::v);
  const Raw<P> stored = round_new<P>(param, o.site, element, Target::param);
  o.param.template write<whole>(i, stored);
  if (o.weights.data) o.weights.template write<whole>(i, round_to<__nv_bfloat16>(unpack(stored)));
}

template <class P, class G, class M, class V>
__global__ void __launch_bounds__(kBlock, 4) adamw(Operands<P, G, M, V> o, Settings a) {
  if (!o.state->accepted) return;
  __shared__ Coefficients shared;
  if (threadIdx.x == 0) shared = coefficients(a, *o.state);
  __syncthreads();
  const Coefficients k = shared;
  o.site.step = o.state->step;
  const int in_tile = static_cast<int>(threadIdx.x) / kWarp * kWarpTile + static_cast<int>(threadIdx.x) % kWarp * kFour;
  // The loop is the same for all lanes of a warp, because all lanes must take part in every step().
  for (std::int64_t tile = std::int64_t{blockIdx.x} * kTile; tile < o.param.n;
       tile += std::int64_t{gridDim.x} * kTile) {
    if (o.aligned && tile + kTile <= o.param.n)
      step<true>(o, k, tile + in_tile);
    else
      step<false>(o, k, tile + in_tile);
  }
}

template <class P, class G, class M, class V>
void run_types(const AdamW& args, const ExecContext& ctx) {
  const std::int64_t n = args.param.numel();
  Operands<P, G, M, V> operands{};
  operands.aligned = true;
  operands.param = flat<P>("adamw", "param", args.param, n, operands.aligned);
  operands.grad = flat<G>("adamw", "grad", args.grad, n, operands.aligned);
  operands.m = flat_moments<M>("adamw", "m", args.m, args.m_scales, n, operands.aligned);
  operands.v = flat_moments<V>("adamw", "v", args.v, args.v_scales, n, operands.aligned);
  operands.weights = flat<__nv_bfloat16>("adamw", "weights", args.weights, n, operands.aligned);
  operands.state = &state_of("adamw", args.state);
  operands.site = args.site;
  operands.first = static_cast<std::uint64_t>(args.first_element);
  const Settings settings{args.beta1, args.beta2, args.eps, args.weight_decay, args.lr_scale};
  launch(ctx, elements(ctx, n, kTile / kBlock), adamw<P, G, M, V>, operands, settings);
}

// Dispatches on one type at a time: nvcc 13 crashed on an earlier form that chose all three types in nested lambdas.
template <class P, class M, class V>
void visit_gradient(const AdamW& args, const ExecContext& ctx) {
  visit_float("adamw", args.grad.dtype(), [&]<class G>() { run_types<P, G, M, V>(args, ctx); });
}
template <class P>
void visit_moments(const AdamW& args, const ExecContext& ctx) {
  if (args.m.dtype() == DType::u8) return visit_gradient<P, E4M3Moment, E4M4Moment>(args, ctx);
  visit_float("adamw", args.m.dtype(), [&]<class M>() { visit_gradient<P, M, M>(args, ctx); });
}

void run_adamw(const AdamW& args, const ExecContext& ctx) {
  RING_CHECK(args.param.defined() && args.grad.defined() && args.m.defined() && args.v.defined(),
             "adamw: an operand is undefined");
  RING_CHECK(args.m.dtype() == args.v.dtype(), "adamw: m is ", describe(args.m), ", v is ", describe(args.v));
  RING_CHECK(args.first_element >= 0 && args.first_element % 8 == 0, "adamw: first_element is ", args.first_element,
             ", expected a multiple of 8");
  visit_float("adamw", args.param.dtype(), [&]<class P>() { visit_moments<P>(args, ctx); });
}

const bool added_adamw = adamw_kernel.add(Backend::cuda, {"flat", run_adamw});

}  // namespace
}  // namespace ring::cuda
