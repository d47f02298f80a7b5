#pragma once
// Flat ranges of moments that optimizers read and write tile by tile (flat_update.cuh): f32, bf16, or FP8 in blocks
// (kernels/fp8_moments.h).

#include "kernels/cuda/flat_update.cuh"
#include "kernels/fp8_moments.h"

namespace ring::cuda {

// The codes of a tile that one lane holds, four in each half of the tile, with the scales of their blocks. Each block
// is spread over four neighbouring lanes.
struct RawFp8 {
  std::uint32_t codes[2], scales[2];
};

// Like Flat, with a scale for each block. `whole` requires that the codes are aligned to 4 bytes.
template <Fp8Moment form>
struct FlatFp8 {
  std::uint8_t *codes, *scales;
  std::int64_t n;

  template <bool whole>
  __device__ RawFp8 read(std::int64_t i) const {
    RawFp8 raw{};
#pragma unroll
    for (int h = 0; h < 2; ++h, i += kHalf) {
      if constexpr (whole)
        raw.codes[h] = *reinterpret_cast<const std::uint32_t*>(codes + i);
      else
        for (int j = 0; j < kFour; ++j)
          if (i + j < n) raw.codes[h] |= std::uint32_t{codes[i + j]} << (8 * j);
      if (whole || i < n) raw.scales[h] = scales[i / kMomentBlock];
    }
    return raw;
  }
  __device__ static Eight unpack(const RawFp8& raw) {
    Eight e;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kFour; ++j)
        e.half[h].v[j] = from_fp8_moment<form>(raw.codes[h] >> (8 * j) & 0xffu, raw.scales[h]);
    return e;
  }

  // Rounds stochastically, like round_new(). Elements past the end must be 0, because they count in the last block.
  template <bool whole>
  __device__ void write_new(std::int64_t i, const Eight& e, const RandomSite& site, std::uint64_t element,
                            Target target) const {
    const Bits bits = random_bits_of(site, element, target);
#pragma unroll
    for (int h = 0; h < 2; ++h, i += kHalf) {
      const std::uint32_t scale = scale_of(e.half[h]);
      std::uint32_t packed = 0;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const std::uint32_t word = bits.half[h][j / 2], random = j % 2 ? word >> 16 : word & 0xffffu;
        packed |= to_fp8_moment<form>(e.half[h].v[j], scale, random) << (8 * j);
      }
      if constexpr (whole)
        *reinterpret_cast<std::uint32_t*>(codes + i) = packed;
      else
        for (int j = 0; j < kFour; ++j)
          if (i + j < n) codes[i + j] = static_cast<std::uint8_t>(packed >> (8 * j));
      if (threadIdx.x % (kMomentBlock / kFour) == 0 && (whole || i < n))
        scales[i / kMomentBlock] = static_cast<std::uint8_t>(scale);
    }
  }

 private:
  // Returns the scale of the block that four lanes hold. All lanes of the warp must call it.
  __device__ static std::uint32_t scale_of(const Floats<kFour>& f) {
    std::uint32_t max = 0;
#pragma unroll
    for (const float x : f.v) max = ::max(max, finite_magnitude(x));
#pragma unroll
    for (int lanes = 1; lanes < kMomentBlock / kFour; lanes *= 2)
      max = ::max(max, __shfl_xor_sync(0xffffffffu, max, lanes));
    return fp8_moment_scale<form>(max);
  }
};

// Moments in device code have elements of type float, __nv_bfloat16, or one of the types below.
struct E4M3Moment {};
struct E4M4Moment {};

template <class M>
struct MomentsOf {
  using type = Flat<M>;
};
template <>
struct MomentsOf<E4M3Moment> {
  using type = FlatFp8<Fp8Moment::e4m3>;
};
template <>
struct MomentsOf<E4M4Moment> {
  using type = FlatFp8<Fp8Moment::e4m4>;
};
template <class M>
using Moments = typename MomentsOf<M>::type;

template <class T>
__device__ Eight unpack_moments(const Flat<T>&, const Raw<T>& raw) {
  return unpack(raw);
}
template <Fp8Moment form>
__device__ Eight unpack_moments(const FlatFp8<form>&, const RawFp8& raw) {
  return FlatFp8<form>::unpack(raw);
}

// Writes new moments, rounded stochastically if they are not f32. i: the lane's first element in the range; element:
// its global index. All lanes of the warp must call it.
template <bool whole, class T>
__device__ void write_new(const Flat<T>& moments, std::int64_t i, const Eight& e, const RandomSite& site,
                          std::uint64_t element, Target target) {
  moments.template write<whole>(i, round_new<T>(e, site, element, target));
}
template <bool whole, Fp8Moment form>
__device__ void write_new(const FlatFp8<form>& moments, std::int64_t i, const Eight& e, const RandomSite& site,
                          std::uint64_t element, Target target) {
  moments.template write_new<whole>(i, e, site, element, target);
}

// Returns the flat range of moments. scales: for u8 moments; undefined for other types, which Flat serves.
template <class M>
Moments<M> flat_moments(const char* op, const char* name, const Tensor& t, const Tensor& scales, std::int64_t n,
                        bool& aligned) {
  check_fp8_moments(op, t, scales);
  if constexpr (std::is_same_v<Moments<M>, Flat<M>>) {
    return flat<M>(op, name, t, n, aligned);
  } else {
    check_numel(op, name, t, n);
    auto* const codes = device_data<std::uint8_t>(t);
    aligned = aligned && is_aligned(codes);
    return {codes, device_data<std::uint8_t>(scales), n};
  }
}

}  // namespace ring::cuda
