// Random kernels: dropout and normal numbers. The generator is counter-based: a random number only depends on its site
// and its element's index (core/philox.h).
#include <cmath>
#include <numbers>

#include "core/step_state.h"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/elementwise.h"

namespace ring::cuda {
namespace {

template <class T>
struct DropoutArgs {
  const T *x, *residual;  // residual: null if there is none
  T* out;
  float beta;
  RandomSite site;
  const StepState* state;    // if not null, its step replaces site.step
  std::uint64_t first;       // index of element 0, which selects the random bits
  const std::int32_t* rows;  // global numbers of the rows of x; null if elements are numbered in order
  std::int64_t width;
  std::uint32_t threshold;
  float scale;

  __device__ std::uint64_t address(std::int64_t i) const {
    if (rows) {
      const std::int64_t row = i / width;
      i += (rows[row] - row) * width;
    }
    return first + static_cast<std::uint64_t>(i);
  }
  __device__ float kept(float x, std::uint32_t bits) const { return (bits >> 8) >= threshold ? x * scale : 0.0f; }
};

template <class T>
__device__ void drop_one(const DropoutArgs<T>& a, std::int64_t i) {
  float y = a.residual ? to_float(a.residual[i]) : 0.0f;
  y += a.kept(to_float(a.x[i]), random_bits(a.site, a.address(i)));
  a.out[i] = from_float<T>(a.beta == 0 ? y : a.beta * to_float(a.out[i]) + y);
}

// Each thread processes two packs. One draw gives four random numbers, so `first` must be a multiple of 4, and `width`
// a multiple of a pack. Elements after the last pack are processed one by one; if `size` is 1, all elements are.
template <int size, class T>
__global__ void __launch_bounds__(kBlock) dropout(DropoutArgs<T> a, std::int64_t n) {
  if (a.state) a.site.step = a.state->step;
  if constexpr (size == 1) {
    const std::int64_t i = thread_x();
    if (i < n) drop_one(a, i);
  } else {
    constexpr int unroll = 2;
    const std::int64_t packs = n / size, first = std::int64_t{blockIdx.x} * (unroll * kBlock) + threadIdx.x;
    Pack<T, size> x[unroll] = {}, residual[unroll] = {}, old[unroll] = {};
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const std::int64_t at = first + u * kBlock;
      if (at >= packs) continue;
      x[u] = load_pack<T, size>(a.x + at * size);
      if (a.residual) residual[u] = load_pack<T, size>(a.residual + at * size);
      if (a.beta != 0) old[u] = load_pack<T, size>(a.out + at * size);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const std::int64_t at = first + u * kBlock;
      const Floats<size> in = unpack(x[u]), before = unpack(old[u]);
      Floats<size> y = unpack(residual[u]);
      const std::uint64_t address = at < packs ? a.address(at * size) : 0;
#pragma unroll
      for (int b = 0; b < size / 4; ++b) {
        const Philox4 bits = random_block(a.site, address / 4 + b);
#pragma unroll
        for (int j = 0; j < 4; ++j) y.v[4 * b + j] += a.kept(in.v[4 * b + j], bits.v[j]);
      }
      if (a.beta != 0)
#pragma unroll
        for (int j = 0; j < size; ++j) y.v[j] += a.beta * before.v[j];
      if (at < packs) store_pack(a.out + at * size, pack<T>(y));
    }
    if (blockIdx.x == 0 && threadIdx.x < n - packs * size) drop_one(a, packs * size + threadIdx.x);
  }
}

template <class T>
void launch_dropout(const Dropout& args, const ExecContext& ctx) {
  const std::int64_t n = args.out.numel();
  DropoutArgs<T> a{};
  a.x = device_data<T>(args.x);
  a.residual = device_data<T>(args.residual);
  a.out = device_data<T>(args.out);
  a.beta = args.beta;
  a.site = args.site;
  a.state = device_state("dropout", args.state);
  a.first = static_cast<std::uint64_t>(args.first_element);
  a.width = width_of_rows("dropout", args.rows, n);
  a.rows = a.width > 0 ? device_data<std::int32_t>(args.rows) : nullptr;
  a.threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(args.rate) * 0x1p24));
  a.scale = 1.0f / (1.0f - args.rate);
  constexpr int size = kPack<T>;
  if (args.first_element % 4 == 0 && a.width % size == 0 && is_aligned(a.x) && is_aligned(a.residual) &&
      is_aligned(a.out))
    launch(ctx, {grid_of(divide_up(n, 2 * size * kBlock))}, dropout<size, T>, a, n);
  else
    launch(ctx, {grid_of(divide_up(n, kBlock))}, dropout<1, T>, a, n);
}

void run_dropout(const Dropout& args, const ExecContext& ctx) {
  const std::int64_t n = args.out.numel();
  RING_CHECK(args.rate >= 0 && args.rate < 1, "dropout: rate ", args.rate, " is not in [0, 1)");
  RING_CHECK(args.first_element >= 0, "dropout: first element ", args.first_element);
  check_numel("dropout", "x", args.x, n);
  check_numel("dropout", "out", args.out, n);
  if (args.residual.defined()) check_numel("dropout", "residual", args.residual, n);
  visit_float("dropout", args.out.dtype(), [&]<class T>() { launch_dropout<T>(args, ctx); });
}

struct NormalPair {
  float v[2];
};

// Returns random numbers 2 * pair and 2 * pair + 1, like random_normal in core/philox.cpp.
__device__ inline NormalPair normal_pair(const RandomSite& site, std::uint64_t pair) {
  const Philox4 r = random_block(site, pair);
  const double u = (static_cast<double>(r.v[0]) + 1.0) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(r.v[1]) * 0x1p-32;
  const double radius = sqrt(-2.0 * log(u));
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  return {{static_cast<float>(radius * cosine), static_cast<float>(radius * sine)}};
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    fill_normal(T* out, std::int64_t n, RandomSite site, float std, std::uint64_t first_pair) {
  constexpr int size = kPack<T>;
  const std::int64_t first = thread_x() * size;
  if (first >= n) return;
  Floats<size> f;
#pragma unroll
  for (int j = 0; j < size; j += 2) {
    const NormalPair pair = normal_pair(site, first_pair + static_cast<std::uint64_t>(first + j) / 2);
    f.v[j] = std * pair.v[0];
    f.v[j + 1] = std * pair.v[1];
  }
  store(out, first, n, f);
}

void run_random_normal(const RandomNormal& args, const ExecContext& ctx) {
  const std::int64_t n = args.out.numel();
  check_numel("random_normal", "out", args.out, n);
  RING_CHECK(args.first_element >= 0 && args.first_element % 2 == 0, "random_normal: first element ",
             args.first_element, " is not even");
  visit_float("random_normal", args.out.dtype(), [&]<class T>() {
    launch(ctx, {grid_of(divide_up(n, kPack<T> * kBlock))}, fill_normal<T>, device_data<T>(args.out), n, args.site,
           args.std, static_cast<std::uint64_t>(args.first_element) / 2);
  });
}

const bool added_random[] = {
    dropout_kernel.add(Backend::cuda, {"packs", run_dropout}),
    random_normal_kernel.add(Backend::cuda, {"box_muller", run_random_normal}),
};

}  // namespace
}  // namespace ring::cuda
