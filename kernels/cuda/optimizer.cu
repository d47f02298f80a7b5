#include "kernels/optimizer.h"

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

// Maximum partial sums of a norm, one per thread block. Their number only depends on the length, so the order of
// summation is the same on every device. It is a few times the number of resident thread blocks, to balance the load.
constexpr int kMaxParts = 4096, kPacksAtOnce = 4;

template <class T>
constexpr int kNormTile = kBlock* kPacksAtOnce* kPack<T>;  // elements that a thread block loads at once

template <class T>
__device__ float squares_of(const Pack<T>& p) {
  const Floats<kPack<T>> f = unpack(p);
  float sum = 0;
#pragma unroll
  for (float v : f.v) sum += v * v;
  return sum;
}

// Accumulates in f32 over the elements that a thread loads at once (16 or 32), then in f64.
template <class T>
__global__ void squares(const T* x, std::int64_t n, double* parts) {
  double sum = 0;
  const bool aligned = is_aligned(x);
  for (std::int64_t tile = std::int64_t{blockIdx.x} * kNormTile<T>; tile < n;
       tile += std::int64_t{gridDim.x} * kNormTile<T>) {
    const std::int64_t begin = tile + static_cast<int>(threadIdx.x) * kPack<T>;
    constexpr int stride = kBlock * kPack<T>;
    Pack<T> packs[kPacksAtOnce];
    if (aligned && tile + kNormTile<T> <= n) {  // no branch per pack: all loads are in flight together
#pragma unroll
      for (int i = 0; i < kPacksAtOnce; ++i) packs[i] = load_pack<T>(x + begin + i * stride);
    } else {
      for (int i = 0; i < kPacksAtOnce; ++i) packs[i] = pack<T>(load(x, begin + i * stride, n));
    }
    float some = 0;
#pragma unroll
    for (int i = 0; i < kPacksAtOnce; ++i) some += squares_of(packs[i]);
    sum += static_cast<double>(some);
  }
  sum = group_sum<kBlock>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void add_squares(const double* parts, int count, float* all) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) sum += parts[i];
  sum = group_sum<kBlock>(sum);
  if (threadIdx.x == 0) *all = static_cast<float>(static_cast<double>(*all) + sum);
}

void run_squared_norm(const SquaredNorm& args, const ExecContext& ctx) {
  RING_CHECK(args.x.defined(), "squared_norm: x is undefined");
  const std::int64_t n = args.x.numel();
  check_numel("squared_norm", "x", args.x, n);
  check_numel("squared_norm", "sum", args.sum, 1);
  if (n == 0) return;
  visit_float("squared_norm", args.x.dtype(), [&]<class T>() {
    const auto count = static_cast<int>(std::min<std::int64_t>(kMaxParts, divide_up(n, kNormTile<T>)));
    const Tensor parts = ctx.empty({count * static_cast<std::int64_t>(sizeof(double))}, DType::u8);
    double* sums = reinterpret_cast<double*>(parts.raw());
    launch(ctx, {grid_of(count)}, squares<T>, device_data<T>(args.x), n, sums);
    launch(ctx, {grid_of(1)}, add_squares, sums, count, device_data<float>(args.sum));
  });
}

__global__ void check_and_clip(StepState* state, float max_norm, const float* loss,
                               const volatile std::uint32_t* peer_lost) {
  const bool lost = peer_lost && *peer_lost != 0;
  const float square = state->squared_norm, total = loss ? *loss : 0.0f;
  const bool finite = isfinite(square) && isfinite(total);
  const bool above = (state->norm_limit > 0 && sqrtf(square) > state->norm_limit) ||
                     (state->loss_limit > 0 && total * state->loss_scale > state->loss_limit);
  const bool accepted = finite && !above && !lost && !state->halted;
  state->loss = total;
  state->clip = max_norm > 0 && isfinite(square) ? fminf(1.0f, max_norm / sqrtf(square)) : 1.0f;
  state->accepted = accepted;
  if (!accepted) state->halted = 1;
  if (lost) state->peer_lost = 1;
}

void run_check_and_clip(const CheckAndClip& args, const ExecContext& ctx) {
  if (args.loss.defined()) check_numel("check_and_clip", "loss", args.loss, 1);
  launch(ctx, {grid_of(1), 1}, check_and_clip, &state_of("check_and_clip", args.state), args.max_norm,
         device_data<float>(args.loss), args.peer_lost);
}

const bool added_optimizer[] = {
    squared_norm_kernel.add(Backend::cuda, {"two_stage", run_squared_norm}),
    check_and_clip_kernel.add(Backend::cuda, {"scalar", run_check_and_clip}),
};

}  // namespace
}  // namespace ring::cuda
