#pragma once
// Sums over the threads of a warp or thread block, in a fixed order, so that results are bit-identical every time.

namespace ring::cuda {

inline constexpr int kWarp = 32;

// Returns the sum over `threads` neighbouring lanes, a power of two. All lanes of the warp must call it.
template <int threads = kWarp, class T>
__device__ inline T warp_sum(T v) {
  static_assert(threads <= kWarp && (threads & (threads - 1)) == 0);
#pragma unroll
  for (int distance = threads / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// Replaces each of `count` values by its sum over `threads` neighbouring threads: part of a warp, a warp, or a whole
// thread block of that size. All threads of the block must call it.
template <int threads, int count, class T>
__device__ inline void group_sums(T (&v)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) v[i] = warp_sum < threads < kWarp ? threads : kWarp > (v[i]);
  if constexpr (threads > kWarp) {
    constexpr int warps = threads / kWarp;
    static_assert(warps <= kWarp && threads % kWarp == 0);
    __shared__ T sums[count][warps];
    __syncthreads();  // the sums of an earlier call have been read
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (threadIdx.x % kWarp == 0) sums[i][threadIdx.x / kWarp] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      v[i] = sums[i][0];
#pragma unroll
      for (int w = 1; w < warps; ++w) v[i] += sums[i][w];
    }
  }
}

template <int threads, class T>
__device__ inline T group_sum(T v) {
  T sums[1] = {v};
  group_sums<threads>(sums);
  return sums[0];
}

// Like group_sums, for loops of teams: a thread block of `block` threads consists of teams of `threads` threads, and
// each team runs its own loop. Takes one barrier per iteration and does not wait for other teams. `odd` must alternate
// between iterations, because the sums of one iteration may still be read while the next ones are written.
template <int threads, int block, int count>
__device__ inline void team_sums(float (&v)[count], bool odd) {
  if constexpr (threads <= kWarp) {
    group_sums<threads>(v);
  } else {
    constexpr int warps = threads / kWarp;
    static_assert(block % threads == 0 && block / threads < 16 && threads % kWarp == 0);
    __shared__ float sums[2][count][block / kWarp];
    const int warp = static_cast<int>(threadIdx.x) / kWarp, team = static_cast<int>(threadIdx.x) / threads;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      v[i] = warp_sum(v[i]);
      if (threadIdx.x % kWarp == 0) sums[odd][i][warp] = v[i];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(threads) : "memory");
#pragma unroll
    for (int i = 0; i < count; ++i) {
      v[i] = sums[odd][i][team * warps];
#pragma unroll
      for (int w = 1; w < warps; ++w) v[i] += sums[odd][i][team * warps + w];
    }
  }
}

}  // namespace ring::cuda
