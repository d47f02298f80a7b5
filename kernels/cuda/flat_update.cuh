#pragma once
// Flat ranges that optimizers read and write tile by tile, and stochastic rounding to bf16 with counter-based random
// bits (core/philox.h).

#include "core/philox.h"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

// A warp processes 256 neighbouring elements at a time. Each lane has four elements in each half, so that accesses are
// whole memory sectors both in f32 (16 bytes per lane) and in bf16 (8 bytes).
constexpr int kFour = 4, kHalf = kFour * kWarp, kWarpTile = 2 * kHalf, kTile = kWarpTile * (kBlock / kWarp);

// Elements of a tile that a lane holds: i .. i + 3, and i + kHalf .. i + kHalf + 3.
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

// A flat range of n elements. `whole` requires that the tile is inside the range and that addresses are aligned; reads
// then have no branches. Reads return elements as stored, so that the loads of all operands can be in flight together.
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
        const Floats<kFour> f = unpack(raw.half[h]);  // values of T, which from_float<T>() does not change
        for (int j = 0; j < kFour; ++j)
          if (i + j < n) data[i + j] = from_float<T>(f.v[j]);
      }
    }
  }
};

// random_block of core/philox.h with one-instruction 32 x 32 -> 64 bit multiplications. AdamW with bf16 states spends
// most time on random numbers and takes up to 6 % longer with the compiler's own code for these products (CUDA 13).
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

// 16 random bits for each of a lane's eight elements. In each half, word 0 is for elements 0 and 1,
// and word 1 for elements 2 and 3.
struct Bits {
  std::uint32_t half[2][2];
};

// The tensor whose elements are rounded with the random bits.
enum class Target : std::uint32_t { param, m, v };
constexpr std::uint64_t kTargets = 4;

// Returns the random bits of a lane's elements. One Philox block, number kTargets * b + target, serves the eight
// elements [8b, 8b + 8) of one target. These elements are in one half of two neighbouring lanes: the even lane computes
// the block of its first half, the odd lane that of its second half, and they exchange words. element: global index of
// the lane's first element; the warp's first index must be a multiple of 8. All lanes of the warp must call it.
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

// Adds 16 random bits below the cut and truncates, which rounds up with the probability that keeps the expected value.
__device__ inline Pack<__nv_bfloat16, kFour> round_randomly(const Floats<kFour>& f, const std::uint32_t (&bits)[2]) {
  Pack<__nv_bfloat16, kFour> p;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    p.bits[j] = __byte_perm(__float_as_uint(f.v[2 * j]) + (bits[j] & 0xffffu),
                            __float_as_uint(f.v[2 * j + 1]) + (bits[j] >> 16), 0x7632);
  return p;
}

// Rounds to T, stochastically if T is bf16. element: global index of the lane's first element. All lanes of the warp
// must call it.
template <class T>
__device__ Raw<T> round_new(const Eight& e, const RandomSite& site, std::uint64_t element, Target target) {
  if constexpr (sizeof(T) == 4) {
    return round_to<T>(e);
  } else {
    const Bits bits = random_bits_of(site, element, target);
    // Infinity and NaN must not turn into other numbers through a carry. One test of all eight elements is cheaper than
    // a test of each, so the neighbours of such a value are rounded to nearest.
    float probe = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (float x : e.half[h].v) probe = fmaf(x, 0.0f, probe);
    if (probe != 0.0f) return round_to<T>(e);
    return {{round_randomly(e.half[0], bits.half[0]), round_randomly(e.half[1], bits.half[1])}};
  }
}

// Returns a flat range; null data if the tensor is undefined. Sets `aligned` to false if packs are not possible.
template <class T>
Flat<T> flat(const char* op, const char* name, const Tensor& t, std::int64_t n, bool& aligned) {
  if (t.defined()) check_numel(op, name, t, n);
  T* data = device_data<T>(t);
  aligned = aligned && is_aligned(data);
  return {data, n};
}

}  // namespace ring::cuda
