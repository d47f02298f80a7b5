#pragma once
// out[i] = f(in[0][i], in[1][i], ...) over contiguous tensors; out may be one of the inputs.

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

template <class In, int inputs>
struct MapInputs {
  const In* data[inputs];
};

template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&v)[1]) {
  return f(v[0]);
}
template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&v)[2]) {
  return f(v[0], v[1]);
}
template <class F>
__device__ __forceinline__ float apply(const F& f, const float (&v)[3]) {
  return f(v[0], v[1], v[2]);
}

// Each thread processes `unroll` packs of `size` elements, all of which are loaded before the first one is used. The
// first thread block also processes the elements after the last whole pack.
template <int size, int unroll, int inputs, class F, class In, class Out>
__global__ void __launch_bounds__(kBlock) map_packs(F f, MapInputs<In, inputs> in, Out* out, std::int64_t n) {
  const std::int64_t packs = n / size, first = std::int64_t{blockIdx.x} * (unroll * kBlock) + threadIdx.x;
  Pack<In, size> x[inputs][unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u)
#pragma unroll
    for (int i = 0; i < inputs; ++i) {
      const std::int64_t at = first + u * kBlock;
      x[i][u] = at < packs ? load_pack<In, size>(in.data[i] + at * size) : Pack<In, size>{};
    }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    Floats<size> value[inputs], y;
#pragma unroll
    for (int i = 0; i < inputs; ++i) value[i] = unpack(x[i][u]);
#pragma unroll
    for (int j = 0; j < size; ++j) {
      float v[inputs];
#pragma unroll
      for (int i = 0; i < inputs; ++i) v[i] = value[i].v[j];
      y.v[j] = apply(f, v);
    }
    const std::int64_t at = first + u * kBlock;
    if (at < packs) store_pack(out + at * size, pack<Out>(y));
  }
  if (blockIdx.x == 0 && threadIdx.x < n - packs * size) {
    const std::int64_t at = packs * size + threadIdx.x;
    float v[inputs];
#pragma unroll
    for (int i = 0; i < inputs; ++i) v[i] = to_float(in.data[i][at]);
    out[at] = from_float<Out>(apply(f, v));
  }
}

template <int inputs, class F, class In, class Out>
void launch_map(const ExecContext& ctx, const F& f, const MapInputs<In, inputs>& in, Out* out, std::int64_t n) {
  constexpr int size = 16 / static_cast<int>(std::max(sizeof(In), sizeof(Out))), unroll = 4 / inputs;
  bool aligned = is_aligned<size* static_cast<int>(sizeof(Out))>(out);
  for (const In* p : in.data) aligned = aligned && is_aligned<size* static_cast<int>(sizeof(In))>(p);
  if (n == 0) return;
  auto grid = [&](int elements) { return Launch{grid_of(divide_up(n, std::int64_t{elements} * unroll * kBlock))}; };
  if (aligned)
    launch(ctx, grid(size), map_packs<size, unroll, inputs, F, In, Out>, f, in, out, n);
  else
    launch(ctx, grid(1), map_packs<1, unroll, inputs, F, In, Out>, f, in, out, n);
}

}  // namespace ring::cuda
