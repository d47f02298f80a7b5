#include "kernels/gradient_codes.h"

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kPerLane = static_cast<int>(kCodeBlock) / kWarp;  // elements per lane, for blocks that share one scale
constexpr int kTopWarps = static_cast<int>(kTopBlock) / kWarp;

// Pointers of an EncodeGradient; residual and left may be null, and may be equal.
template <class T>
struct EncodeArgs {
  const T* gradient;
  const float* residual;
  float* left;
  std::uint8_t* message;
  std::int64_t n;

  explicit EncodeArgs(const EncodeGradient& a)
      : gradient(device_data<T>(a.gradient)),
        residual(device_data<float>(a.residual)),
        left(device_data<float>(a.left)),
        message(a.message.data<std::uint8_t>()),
        n(a.gradient.numel()) {}
  __device__ float x(std::int64_t i) const { return to_float(gradient[i]) + (residual ? residual[i] : 0.0f); }
  __device__ void set_left(std::int64_t i, float value) const {
    if (left) left[i] = value;
  }
};

// One warp per block of kCodeBlock elements; lane l holds elements l, l + 32, ...
template <GradientCode code, class T>
__global__ void __launch_bounds__(kBlock) encode_scaled(EncodeArgs<T> a, std::int64_t codes_at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t blocks = (a.n + kCodeBlock - 1) / kCodeBlock;
  for (std::int64_t b = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; b < blocks;
       b += std::int64_t{gridDim.x} * kWarps) {
    float x[kPerLane];
    std::uint32_t max = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const std::int64_t i = b * kCodeBlock + j * kWarp + lane;
      x[j] = i < a.n ? a.x(i) : 0.0f;
      max = ::max(max, magnitude_bits(x[j]));
    }
    max = __reduce_max_sync(0xffffffffu, max);
    const std::uint32_t biased = code == GradientCode::int8 ? integer_scale(max, 8) : e4m3_scale(max);
    if (lane == 0) a.message[b] = static_cast<std::uint8_t>(biased);
    const bool poisoned = biased == kPoisonedScale;
    const float scale = poisoned ? 0.0f : scale_of_bits(biased), factor = poisoned ? 0.0f : factor_of_bits(biased);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const std::int64_t i = b * kCodeBlock + j * kWarp + lane;
      if (i >= a.n) continue;
      std::uint32_t byte = 0;
      float value = 0;
      if (poisoned) {
        x[j] = 0;
      } else if constexpr (code == GradientCode::int8) {
        const std::int32_t q = rounded_integer(x[j] * factor, 8);
        byte = static_cast<std::uint32_t>(q) & 0xffu;
        value = static_cast<float>(q) * scale;
      } else {
        byte = pack_e4m3(x[j] * factor, 0, 0, 0) & 0xffu;
        value = unpack_e4m3(byte).x * scale;
      }
      a.message[codes_at + i] = static_cast<std::uint8_t>(byte);
      a.set_left(i, x[j] - value);
    }
  }
}

template <bool exact, class T>
__global__ void __launch_bounds__(kBlock) encode_alone(EncodeArgs<T> a) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < a.n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const float x = a.x(i);
    if constexpr (exact) {
      reinterpret_cast<float*>(a.message)[i] = x;
      a.set_left(i, 0);
    } else {
      const std::uint32_t bits = sent_bf16(x);
      reinterpret_cast<std::uint16_t*>(a.message)[i] = static_cast<std::uint16_t>(bits);
      a.set_left(i, left_of(x, bf16_value(bits)));
    }
  }
}

// Returns the number of threads with a smaller index whose `flag` is set. All kTopBlock threads must call it.
__device__ int rank_in_block(bool flag, int* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::uint32_t flags = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // all threads have read of_warps of the previous call
  if (lane == 0) of_warps[warp] = __popc(flags);
  __syncthreads();
  int rank = __popc(flags & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) rank += of_warps[w];
  return rank;
}

// One thread block per kTopBlock elements, one thread per element. Finds the smallest magnitude among the `top` largest
// bit by bit, then selects larger magnitudes and, in the order of their indices, equal ones.
template <class T>
__global__ void __launch_bounds__(kTopBlock) encode_top(EncodeArgs<T> a, int top) {
  __shared__ int of_warps[kTopWarps];
  const std::int64_t i = std::int64_t{blockIdx.x} * kTopBlock + threadIdx.x;
  const bool inside = i < a.n;
  const std::int64_t rest = a.n - std::int64_t{blockIdx.x} * kTopBlock;
  const int sent = rest < top ? static_cast<int>(rest) : top;
  const float x = inside ? a.x(i) : 0.0f;
  const std::uint32_t magnitude = magnitude_bits(x);
  std::uint32_t smallest = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t at_least = smallest | 1u << bit;
    if (__syncthreads_count(inside && magnitude >= at_least) >= sent) smallest = at_least;
  }
  const int above = __syncthreads_count(inside && magnitude > smallest);
  const bool tie = inside && magnitude == smallest;
  const bool selected = (inside && magnitude > smallest) | (rank_in_block(tie, of_warps) < sent - above && tie);
  const int at = rank_in_block(selected, of_warps);
  auto* const out = reinterpret_cast<std::uint32_t*>(a.message) + std::int64_t{blockIdx.x} * top;
  if (selected) out[at] = top_entry(threadIdx.x, x);
  if (static_cast<int>(threadIdx.x) >= sent && static_cast<int>(threadIdx.x) < top) out[threadIdx.x] = kUnusedEntry;
  if (inside) a.set_left(i, left_of(x, selected ? bf16_value(sent_bf16(x)) : 0.0f));
}

[[noreturn]] void refuse_few_bits() {
  fail("4-bit and 2-bit gradient codes are supported on CPUs only. Use int8 or fp8 on GPUs");
}

template <class T>
void encode(const EncodeGradient& call, const ExecContext& ctx) {
  const EncodeArgs<T> a(call);
  if (a.n == 0) return;
  const Launch warps{grid_of(std::min(divide_up(a.n, kCodeBlock * kWarps), resident_blocks(ctx)))};
  switch (call.coding.code) {
    case GradientCode::f32: return launch(ctx, elements(ctx, a.n), encode_alone<true, T>, a);
    case GradientCode::bf16: return launch(ctx, elements(ctx, a.n), encode_alone<false, T>, a);
    case GradientCode::int8: return launch(ctx, warps, encode_scaled<GradientCode::int8, T>, a, code_offset(a.n));
    case GradientCode::fp8: return launch(ctx, warps, encode_scaled<GradientCode::fp8, T>, a, code_offset(a.n));
    case GradientCode::int4:
    case GradientCode::int2: refuse_few_bits();
    case GradientCode::topk:
      return launch(ctx, {grid_of(divide_up(a.n, kTopBlock)), kTopBlock}, encode_top<T>, a, call.coding.top);
  }
}

void run_encode_gradient(const EncodeGradient& a, const ExecContext& ctx) {
  check(a);
  visit_float("encode_gradient", a.gradient.dtype(), [&]<class T>() { encode<T>(a, ctx); });
}

template <GradientCode code>
__device__ float sent_value(const std::uint8_t* message, std::int64_t codes_at, std::int64_t i) {
  if constexpr (code == GradientCode::f32) return reinterpret_cast<const float*>(message)[i];
  if constexpr (code == GradientCode::bf16) return bf16_value(reinterpret_cast<const std::uint16_t*>(message)[i]);
  const std::uint32_t biased = message[i / kCodeBlock];
  if (biased == kPoisonedScale) return __uint_as_float(kNaNBits);
  const std::uint8_t byte = message[codes_at + i];
  const float value =
      code == GradientCode::int8 ? static_cast<float>(static_cast<std::int8_t>(byte)) : unpack_e4m3(byte).x;
  return value * scale_of_bits(biased);
}

template <GradientCode code>
__global__ void __launch_bounds__(kBlock)
    decode_values(const std::uint8_t* message, float* sum, std::int64_t n, std::int64_t codes_at, bool add) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kBlock) {
    const float value = sent_value<code>(message, codes_at, i);
    sum[i] = add ? sum[i] + value : value;
  }
}

// The indices of a block's entries are distinct, so no two threads add to the same element.
__global__ void __launch_bounds__(kBlock)
    decode_top(const std::uint32_t* message, float* sum, std::int64_t entries, std::int64_t top) {
  for (std::int64_t e = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; e < entries;
       e += std::int64_t{gridDim.x} * kBlock)
    if (const std::uint32_t entry = message[e]; entry < kUnusedEntry)
      sum[e / top * kTopBlock + (entry >> 16)] += bf16_value(entry & 0xffffu);
}

void run_decode_gradient(const DecodeGradient& a, const ExecContext& ctx) {
  check(a);
  const std::int64_t n = a.sum.numel(), top = a.coding.top;
  const std::uint8_t* const message = a.message.data<std::uint8_t>();
  float* const sum = device_data<float>(a.sum);
  const Launch shape = elements(ctx, n);
  const auto values = [&](auto* kernel) { launch(ctx, shape, kernel, message, sum, n, code_offset(n), a.add); };
  switch (a.coding.code) {
    case GradientCode::f32: return values(decode_values<GradientCode::f32>);
    case GradientCode::bf16: return values(decode_values<GradientCode::bf16>);
    case GradientCode::int8: return values(decode_values<GradientCode::int8>);
    case GradientCode::fp8: return values(decode_values<GradientCode::fp8>);
    case GradientCode::int4:
    case GradientCode::int2: refuse_few_bits();
    case GradientCode::topk: {
      if (!a.add) fill_zero(a.sum, ctx.stream);
      const std::int64_t entries = divide_up(n, kTopBlock) * top;
      return launch(ctx, elements(ctx, entries), decode_top, reinterpret_cast<const std::uint32_t*>(message), sum,
                    entries, top);
    }
  }
}

__global__ void __launch_bounds__(kBlock) settle(float* kept, float* pending, std::int64_t n, const StepState* state) {
  const float* const from = state->accepted ? pending : kept;
  float* const to = state->accepted ? kept : pending;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kBlock)
    to[i] = from[i];
}

void run_settle(const SettleResiduals& a, const ExecContext& ctx) {
  const std::int64_t n = a.kept.numel();
  check_numel("settle_residuals", "kept", a.kept, n);
  check_numel("settle_residuals", "pending", a.pending, n);
  const StepState* state = &state_of("settle_residuals", a.state);
  launch(ctx, elements(ctx, n), settle, device_data<float>(a.kept), device_data<float>(a.pending), n, state);
}

const bool added_gradient_codes[] = {
    encode_gradient_kernel.add(Backend::cuda, {"blocks", run_encode_gradient}),
    decode_gradient_kernel.add(Backend::cuda, {"elements", run_decode_gradient}),
    settle_residuals_kernel.add(Backend::cuda, {"copy", run_settle}),
};

}  // namespace
}  // namespace ring::cuda
