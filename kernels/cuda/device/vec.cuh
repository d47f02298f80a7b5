#pragma once
// Thread indices within the grid, and packs: neighbouring elements that one thread loads or stores at once, 16 bytes by
// default. Elements are float or __nv_bfloat16 in memory and float in arithmetic; stores round to nearest even.

#include <cuda_bf16.h>

#include <cstdint>

namespace ring::cuda {

__device__ inline std::int64_t thread_x() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t thread_y() { return std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t threads_x() { return std::int64_t{gridDim.x} * blockDim.x; }
__device__ inline std::int64_t threads_y() { return std::int64_t{gridDim.y} * blockDim.y; }

template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));  // elements in 16 bytes

template <int n>
struct Floats {
  float v[n];
};

// n elements as stored in memory. A pack of bf16 needs half the registers of its values in f32, so values that wait for
// a reduction are kept as packs.
template <class T, int n = kPack<T>>
struct Pack {
  static_assert(n * sizeof(T) % 4 == 0, "packs are made of 4-byte words");
  std::uint32_t bits[n * sizeof(T) / 4];
};
template <class T>
struct Pack<T, 1> {
  T value;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else
    return __float2bfloat16_rn(x);
}

template <class T, int n>
__device__ inline Floats<n> unpack(const Pack<T, n>& p) {
  Floats<n> f;
  if constexpr (n == 1) {
    f.v[0] = to_float(p.value);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < n; ++j) f.v[j] = __uint_as_float(p.bits[j]);
  } else {
#pragma unroll
    for (int j = 0; j < n / 2; ++j) {
      f.v[2 * j] = __uint_as_float(p.bits[j] << 16);
      f.v[2 * j + 1] = __uint_as_float(p.bits[j] & 0xffff0000u);
    }
  }
  return f;
}

template <class T, int n>
__device__ inline Pack<T, n> pack(const Floats<n>& f) {
  Pack<T, n> p;
  if constexpr (n == 1) {
    p.value = from_float<T>(f.v[0]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < n; ++j) p.bits[j] = __float_as_uint(f.v[j]);
  } else {
#pragma unroll
    for (int j = 0; j < n / 2; ++j) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(f.v[2 * j], f.v[2 * j + 1]);
      p.bits[j] = *reinterpret_cast<const std::uint32_t*>(&two);
    }
  }
  return p;
}

// Cache policy of loads and stores. `stream` marks data that is not read again soon, so that it is evicted first.
enum class Cache : std::uint8_t { keep, stream };

template <Cache cache, class Word>
__device__ inline Word load_word(const void* p, int i) {
  const Word* w = static_cast<const Word*>(p) + i;
  if constexpr (cache == Cache::stream)
    return __ldcs(w);
  else
    return *w;
}
template <Cache cache, class Word>
__device__ inline void store_word(void* p, int i, const Word& word) {
  Word* w = static_cast<Word*>(p) + i;
  if constexpr (cache == Cache::stream)
    __stcs(w, word);
  else
    *w = word;
}

// Loads n elements at p, which must be aligned to their size, or to 16 bytes if they are larger.
template <class T, int n = kPack<T>, Cache cache = Cache::keep>
__device__ inline Pack<T, n> load_pack(const T* p) {
  Pack<T, n> q;
  if constexpr (n == 1) {
    q.value = *p;
  } else if constexpr (n * sizeof(T) == 4) {
    q.bits[0] = load_word<cache, unsigned>(p, 0);
  } else if constexpr (n * sizeof(T) == 8) {
    const uint2 w = load_word<cache, uint2>(p, 0);
    q.bits[0] = w.x, q.bits[1] = w.y;
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(n * sizeof(T) / 16); ++i) {
      const uint4 w = load_word<cache, uint4>(p, i);
      q.bits[4 * i] = w.x, q.bits[4 * i + 1] = w.y, q.bits[4 * i + 2] = w.z, q.bits[4 * i + 3] = w.w;
    }
  }
  return q;
}

template <Cache cache = Cache::keep, class T, int n>
__device__ inline void store_pack(T* p, const Pack<T, n>& q) {
  if constexpr (n == 1) {
    *p = q.value;
  } else if constexpr (n * sizeof(T) == 4) {
    store_word<cache, unsigned>(p, 0, q.bits[0]);
  } else if constexpr (n * sizeof(T) == 8) {
    store_word<cache, uint2>(p, 0, make_uint2(q.bits[0], q.bits[1]));
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(n * sizeof(T) / 16); ++i)
      store_word<cache, uint4>(p, i,
                               make_uint4(q.bits[4 * i], q.bits[4 * i + 1], q.bits[4 * i + 2], q.bits[4 * i + 3]));
  }
}

template <int bytes = 16>
__host__ __device__ inline bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// Load and store elements [i, i + 16 bytes) of p[0..n); i may be negative. One 16-byte access if all elements are
// inside and the address is aligned. Elements outside read as 0 and are not written.
template <class T>
__device__ inline Floats<kPack<T>> load(const T* p, std::int64_t i, std::int64_t n) {
  if (i >= 0 && i + kPack<T> <= n && is_aligned(p + i)) return unpack(load_pack(p + i));
  Floats<kPack<T>> f;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) f.v[j] = i + j >= 0 && i + j < n ? to_float(p[i + j]) : 0.0f;
  return f;
}

template <class T>
__device__ inline void store(T* p, std::int64_t i, std::int64_t n, const Floats<kPack<T>>& f) {
  if (i >= 0 && i + kPack<T> <= n && is_aligned(p + i)) {
    store_pack(p + i, pack<T>(f));
    return;
  }
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j)
    if (i + j >= 0 && i + j < n) p[i + j] = from_float<T>(f.v[j]);
}

// dst = beta * dst + value; does not read dst if beta = 0.
template <class T>
__device__ inline void accumulate(T* p, std::int64_t i, std::int64_t n, float beta, Floats<kPack<T>> f) {
  if (beta != 0) {
    const Floats<kPack<T>> old = load(static_cast<const T*>(p), i, n);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) f.v[j] += beta * old.v[j];
  }
  store(p, i, n, f);
}

}  // namespace ring::cuda
