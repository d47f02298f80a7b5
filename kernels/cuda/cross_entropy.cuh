#pragma once
// Shared parts of the softmax cross-entropy kernels: the log-sum-exp of a row that a thread block reads in packs, and
// the gradient of a logit.

#include <cfloat>

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

__device__ inline float largest(const Pack<float>& p) {
  const Floats<4> f = unpack(p);
  return fmaxf(fmaxf(f.v[0], f.v[1]), fmaxf(f.v[2], f.v[3]));
}
__device__ inline float largest(const Pack<__nv_bfloat16>& p) {
  const auto two = [&](int i) { return *reinterpret_cast<const __nv_bfloat162*>(p.bits + i); };
  const __nv_bfloat162 m = __hmax2(__hmax2(two(0), two(1)), __hmax2(two(2), two(3)));
  return fmaxf(__low2float(m), __high2float(m));
}

// Returns exp(x) with 2 instructions; relative error about 2^-22 near 0 and |x| * 2^-24 far from it. exp(-inf) = 0.
__device__ inline float exp_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// Running maximum, and sum of exp(x - max). The maximum starts at a finite number, so that rows that begin with -inf do
// not give inf - inf. NaN never becomes the maximum, but makes the sum NaN.
struct LogSum {
  float max = -FLT_MAX, sum = 0;
  __device__ void raise(float to) {
    if (to <= max) return;
    sum *= exp_fast(max - to);
    max = to;
  }
  __device__ void add(float x) {
    raise(fmaxf(x, max));
    sum += exp_fast(x - max);
  }
  template <class T>
  __device__ void add(const Pack<T>& p) {
    raise(fmaxf(largest(p), max));
    Floats<kPack<T>> f = unpack(p);
#pragma unroll
    for (float& x : f.v) x = exp_fast(x - max);
#pragma unroll
    for (int n = kPack<T> / 2; n > 0; n /= 2)
#pragma unroll
      for (int j = 0; j < n; ++j) f.v[j] += f.v[j + n];
    sum += f.v[0];
  }
};

// Combines the lanes of a warp. All lanes get identical bits, since each adds the same numbers in the same order.
__device__ inline LogSum of_warp(LogSum s) {
  float max = s.max;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
  s.raise(max);
  s.sum = warp_sum(s.sum);
  return s;
}

// Combines the threads of a block. All threads must call it, and a kernel must call it only once.
__device__ inline LogSum of_block(LogSum s) {
  __shared__ float maxima[kWarp], sums[kWarp];
  const unsigned lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  s = of_warp(s);
  if (lane == 0) {
    maxima[threadIdx.x / kWarp] = s.max;
    sums[threadIdx.x / kWarp] = s.sum;
  }
  __syncthreads();
  LogSum all;
  if (lane < warps) {
    all.max = maxima[lane];
    all.sum = sums[lane];
  }
  return of_warp(all);
}

// A row's elements [0, n): `packs` aligned packs of 16 bytes, which begin at element `head`, and up to kPack - 1 single
// elements both before and after them.
template <class T>
struct Span {
  T* row;
  int n, head, packs;
  __device__ Span(T* at, int count) : row(at), n(count) {
    const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = min(n, (kPack<T> - past) % kPack<T>);
    packs = (n - head) / kPack<T>;
  }
  __device__ T* body(int pack) const { return row + head + pack * kPack<T>; }
  __device__ int singles() const { return n - packs * kPack<T>; }
  __device__ int single(int i) const { return i < head ? i : i + packs * kPack<T>; }
};

template <class T>
__device__ void zero(T* row, int n) {
  if (n <= 0) return;
  const Span<T> span(row, n);
  for (int i = static_cast<int>(threadIdx.x); i < span.packs; i += static_cast<int>(blockDim.x))
    store_pack(span.body(i), Pack<T>{});
  for (int i = static_cast<int>(threadIdx.x); i < span.singles(); i += static_cast<int>(blockDim.x))
    row[span.single(i)] = from_float<T>(0);
}

// Calls each(i, pack i) for this thread's packs [begin, end) of the row, with four loads in flight.
template <class T, class Each>
__device__ void from_cache(const Span<T>& span, int begin, int end, const Each& each) {
  constexpr int ahead = 4;
  const int threads = static_cast<int>(blockDim.x);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += ahead * threads) {
    Pack<T> packs[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j)
      if (i + j * threads < end) packs[j] = load_pack<T>(span.body(i + j * threads));
#pragma unroll
    for (int j = 0; j < ahead; ++j)
      if (i + j * threads < end) each(i + j * threads, packs[j]);
  }
}

// Gradient of a logit x: exp(x - max) * factor, from which `at_target` is subtracted at the target.
struct Gradient {
  float max, factor, at_target;
  __device__ float operator()(float x) const { return exp_fast(x - max) * factor; }
  template <class T>
  __device__ Pack<T> operator()(const Pack<T>& p, int slot) const {  // slot: index of the target, or negative
    Floats<kPack<T>> f = unpack(p);
#pragma unroll
    for (float& x : f.v) x = (*this)(x);
    if (slot >= 0) {
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) f.v[j] -= j == slot ? at_target : 0.0f;
    }
    return pack<T>(f);
  }
};

// Writes the gradient of a row. The first `keep` packs are read from `kept`. target: index in the row, or any other.
template <class T>
__device__ void write_gradient(const Span<T>& span, const T* kept, int keep, int target, const Gradient& gradient) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int from_body = target - span.head;
  const int target_pack = from_body >= 0 ? from_body / kPack<T> : -1, target_slot = from_body % kPack<T>;
  const auto slot = [=](int i) { return i == target_pack ? target_slot : -1; };
  // Begins with the packs that were read last: they are still in the L2 cache.
  from_cache(span, keep, span.packs, [&](int i, const Pack<T>& p) { store_pack(span.body(i), gradient(p, slot(i))); });
#pragma unroll 2
  for (int i = thread; i < keep; i += threads)
    store_pack(span.body(i), gradient(load_pack<T>(kept + i * kPack<T>), slot(i)));
  for (int i = thread; i < span.singles(); i += threads) {
    T* x = span.row + span.single(i);
    *x = from_float<T>(gradient(to_float(*x)) - (span.single(i) == target ? gradient.at_target : 0.0f));
  }
}

}  // namespace ring::cuda
