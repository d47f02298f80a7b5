#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/optimizer.h"

namespace ring::cuda {
namespace {

// A warp works on 256 neighbouring elements at a time: a lane on four in each half, so that accesses are whole sectors
// of memory in f32 (16 bytes per lane) and in bf16 (8 bytes).
constexpr int kFour = 4, kHalf = kFour * kWarp, kWarpTile = 2 * kHalf, kTile = kWarpTile * (kBlock / kWarp);

// What a lane holds of a tile: elements i .. i + 3, and i + kHalf .. i + kHalf + 3.
struct Eight {
  Floats<kFour> half[2];
};
template <class T>
struct Raw {
  Pack<T, kFour> half[2];
};

template <class T>
__device__ Eight unpack(const Raw<T>& raw) {
  return {{unpack(raw.half[0]), unpack(raw.half[1])}};
}
template <class T>
__device__ Raw<T> round_to(const Eight& e) {
  return {{pack<T>(e.half[0]), pack<T>(e.half[1])}};
}

// A flat range, read and written in packs where `whole`: the tile lies in the range, and addresses are aligned. Reads
// are branchless there and give what is in memory, so that those of all operands are on their way together.
template <class T>
struct Flat {
  T* data;
  std::int64_t n;

  template <bool whole>
  __device__ Raw<T> read(std::int64_t i) const {
    Raw<T> raw;
#pragma unroll
    for (int h = 0; h < 2; ++h, i += kHalf) {
      if constexpr (whole) {
        raw.half[h] = load_pack<T, kFour, Cache::stream>(data + i);
      } else {
        Floats<kFour> f{};
        for (int j = 0; j < kFour; ++j)
          if (i + j < n) f.v[j] = to_float(data[i + j]);
        raw.half[h] = pack<T>(f);
      }
    }
    return raw;
  }

  template <bool whole>
  __device__ void write(std::int64_t i, const Raw<T>& raw) const {
#pragma unroll
    for (int h = 0; h < 2; ++h, i += kHalf) {
      if constexpr (whole) {
        store_pack<Cache::stream>(data + i, raw.half[h]);
      } else {
        const Floats<kFour> f = unpack(raw.half[h]);  // values of T already: rounding them again changes nothing
        for (int j = 0; j < kFour; ++j)
          if (i + j < n) data[i + j] = from_float<T>(f.v[j]);
      }
    }
  }
};

// random_block of core/philox.h. Its 64-bit products cost extra additions when the compiler translates them; here the
// random numbers are most of the instructions.
__device__ inline std::uint64_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline Philox4 philox_wide(const RandomSite& s, std::uint64_t block) {
  auto c0 = static_cast<std::uint32_t>(block), c1 = static_cast<std::uint32_t>(block >> 32), c2 = s.step, c3 = s.site;
  auto k0 = static_cast<std::uint32_t>(s.seed), k1 = static_cast<std::uint32_t>(s.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = multiply(0xD2511F53u, c0), b = multiply(0xCD9E8D57u, c2);
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// 16 random bits for each of a lane's eight elements: word j / 2 holds those of elements j and j + 1 of a half.
struct Bits {
  std::uint32_t half[2][2];
};

// Which of the tensors the bits are for.
enum class Target : std::uint32_t { param, m, v };
constexpr std::uint64_t kTargets = 4;

// One Philox block serves the eight elements [8b, 8b + 8) of one target, as number kTargets * b + target. Those
// elements are in one half of two neighbouring lanes, so the even lane makes the block of its first half, the odd lane
// that of its second half, and each gets the other's words for the elements that it holds. element: global number of
// the lane's first one, of which the warp's first is a multiple of 8. All lanes of the warp call it.
__device__ inline Bits random_bits_of(const RandomSite& site, std::uint64_t element, Target target) {
  const bool odd = threadIdx.x % 2 != 0;
  const std::uint64_t own = (odd ? element - kFour + kHalf : element) / 8;
  const Philox4 r = philox_wide(site, kTargets * own + static_cast<std::uint32_t>(target));
  // Words 0 and 1 are for the even lane, words 2 and 3 for the odd one.
  std::uint32_t mine[2], others[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    mine[j] = odd ? r.v[2 + j] : r.v[j];
    others[j] = __shfl_xor_sync(0xffffffffu, odd ? r.v[j] : r.v[2 + j], 1);
  }
  return odd ? Bits{{{others[0], others[1]}, {mine[0], mine[1]}}} : Bits{{{mine[0], mine[1]}, {others[0], others[1]}}};
}

// Adds 16 random bits below the cut and truncates: rounds up with the probability that makes the expected value exact.
__device__ inline Pack<__nv_bfloat16, kFour> round_randomly(const Floats<kFour>& f, const std::uint32_t (&bits)[2]) {
  Pack<__nv_bfloat16, kFour> p;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    p.bits[j] = __byte_perm(__float_as_uint(f.v[2 * j]) + (bits[j] & 0xffffu),
                            __float_as_uint(f.v[2 * j + 1]) + (bits[j] >> 16), 0x7632);
  return p;
}

// element: global number of the lane's first one. All lanes of the warp call it.
template <class T>
__device__ Raw<T> round_new(const Eight& e, const RandomSite& site, std::uint64_t element, Target target) {
  if constexpr (sizeof(T) == 4) {
    return round_to<T>(e);
  } else {
    const Bits bits = random_bits_of(site, element, target);
    // Infinity and NaN must not be carried on into other numbers. One test of all eight is cheaper than one of each;
    // the neighbours of such a value are rounded to nearest.
    float probe = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (float x : e.half[h].v) probe = fmaf(x, 0.0f, probe);
    if (probe != 0.0f) return round_to<T>(e);
    return {{round_randomly(e.half[0], bits.half[0]), round_randomly(e.half[1], bits.half[1])}};
  }
}

struct Settings {
  float beta1, beta2, eps, weight_decay, lr_scale;
};
// What all elements of a step share. in_m and in_v scale the gradient: clip * (1 - beta1), clip * sqrt(1 - beta2).
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

// One instruction each, relative error about 2^-22. Subnormal numbers count as 0, far below any eps.
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

// Spelled out in fmaf: an element must get the same bits wherever a range begins and ends, and the compiler is free to
// contract the two kinds of tile differently.
__device__ inline void update(float& param, float grad, float& m, float& v, const Coefficients& k) {
  const float g = k.in_v * grad;
  m = fmaf(k.beta1, m, k.in_m * grad);
  v = fmaf(g, g, k.beta2 * v);
  param = fmaf(-(k.rate * m), inverse(fmaf(root(v), k.scale2, k.eps)), k.decay * param);
}

template <class P, class G, class M>
struct Operands {
  Flat<P> param;
  Flat<G> grad;
  Flat<M> m, v;
  Flat<__nv_bfloat16> weights;  // data null: none
  const StepState* state;
  RandomSite site;
  std::uint64_t first;  // global number of element 0
  bool aligned;         // all of them to 16 bytes
};

template <bool whole, class P, class G, class M>
__device__ void step(const Operands<P, G, M>& o, const Coefficients& k, std::int64_t i) {
  const Raw<G> raw_grad = o.grad.template read<whole>(i);
  const Raw<M> raw_m = o.m.template read<whole>(i), raw_v = o.v.template read<whole>(i);
  const Raw<P> raw_param = o.param.template read<whole>(i);
  const Eight grad = unpack(raw_grad);
  Eight param = unpack(raw_param), m = unpack(raw_m), v = unpack(raw_v);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < kFour; ++j) update(param.half[h].v[j], grad.half[h].v[j], m.half[h].v[j], v.half[h].v[j], k);
  const std::uint64_t element = o.first + static_cast<std::uint64_t>(i);
  o.m.template write<whole>(i, round_new<M>(m, o.site, element, Target::m));
  o.v.template write<whole>(i, round_new<M>(v, o.site, element, Target::v));
  const Raw<P> stored = round_new<P>(param, o.site, element, Target::param);
  o.param.template write<whole>(i, stored);
  if (o.weights.data) o.weights.template write<whole>(i, round_to<__nv_bfloat16>(unpack(stored)));
}

template <class P, class G, class M>
__global__ void __launch_bounds__(kBlock, 4) adamw(Operands<P, G, M> o, Settings a) {
  if (!o.state->accepted) return;
  __shared__ Coefficients shared;
  if (threadIdx.x == 0) shared = coefficients(a, *o.state);
  __syncthreads();
  const Coefficients k = shared;
  o.site.step = o.state->step;
  const int in_tile = static_cast<int>(threadIdx.x) / kWarp * kWarpTile + static_cast<int>(threadIdx.x) % kWarp * kFour;
  // The bound is of the tile, not of the lane: all lanes take part in every step.
  for (std::int64_t tile = std::int64_t{blockIdx.x} * kTile; tile < o.param.n;
       tile += std::int64_t{gridDim.x} * kTile) {
    if (o.aligned && tile + kTile <= o.param.n)
      step<true>(o, k, tile + in_tile);
    else
      step<false>(o, k, tile + in_tile);
  }
}

// Clears `aligned` where packs are not possible. An undefined tensor gives null.
template <class T>
Flat<T> flat(const char* name, const Tensor& t, std::int64_t n, bool& aligned) {
  if (t.defined()) check_numel("adamw", name, t, n);
  T* data = device_data<T>(t);
  aligned = aligned && is_aligned(data);
  return {data, n};
}

template <class P, class G, class M>
void run_types(const AdamW& args, const ExecContext& ctx) {
  const std::int64_t n = args.param.numel();
  Operands<P, G, M> operands{};
  operands.aligned = true;
  operands.param = flat<P>("param", args.param, n, operands.aligned);
  operands.grad = flat<G>("grad", args.grad, n, operands.aligned);
  operands.m = flat<M>("m", args.m, n, operands.aligned);
  operands.v = flat<M>("v", args.v, n, operands.aligned);
  operands.weights = flat<__nv_bfloat16>("weights", args.weights, n, operands.aligned);
  operands.state = &state_of("adamw", args.state);
  operands.site = args.site;
  operands.first = static_cast<std::uint64_t>(args.first_element);
  const Settings settings{args.beta1, args.beta2, args.eps, args.weight_decay, args.lr_scale};
  launch(ctx, elements(ctx, n, kTile / kBlock), adamw<P, G, M>, operands, settings);
}

// One type at a time: nvcc 13 crashed on an earlier form that chose all three in nested lambdas.
template <class P, class M>
void visit_gradient(const AdamW& args, const ExecContext& ctx) {
  visit_float("adamw", args.grad.dtype(), [&]<class G>() { run_types<P, G, M>(args, ctx); });
}
template <class P>
void visit_moments(const AdamW& args, const ExecContext& ctx) {
  visit_float("adamw", args.m.dtype(), [&]<class M>() { visit_gradient<P, M>(args, ctx); });
}

void run_adamw(const AdamW& args, const ExecContext& ctx) {
  RING_CHECK(args.param.defined() && args.grad.defined() && args.m.defined() && args.v.defined(),
             "adamw: an operand is undefined");
  RING_CHECK(args.m.dtype() == args.v.dtype(), "adamw: m is ", describe(args.m), ", v is ", describe(args.v));
  RING_CHECK(args.first_element >= 0 && args.first_element % 8 == 0, "adamw: first_element is ", args.first_element,
             ", expected a multiple of 8");
  visit_float("adamw", args.param.dtype(), [&]<class P>() { visit_moments<P>(args, ctx); });
}

const bool added = adamw_kernel.add(Backend::cuda, {"flat", run_adamw});

}  // namespace
}  // namespace ring::cuda
