#pragma once
// Sums over the threads of a warp or a block, in one fixed order: the same bits every time.

namespace ring::cuda {

inline constexpr int kWarp = 32;

// Every lane gets the sum.
template <class T>
__device__ inline T warp_sum(T v) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// Sum over `threads` neighbouring threads: one warp, or the whole block of that size. All of them call it, and get it.
template <int threads, class T>
__device__ inline T group_sum(T v) {
  v = warp_sum(v);
  if constexpr (threads > kWarp) {
    constexpr int warps = threads / kWarp;
    static_assert(warps <= kWarp && threads % kWarp == 0);
    __shared__ T sums[warps];
    __syncthreads();  // the sums of an earlier call have been read
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = v;
    __syncthreads();
    v = sums[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) v += sums[w];
  }
  return v;
}

}  // namespace ring::cuda
