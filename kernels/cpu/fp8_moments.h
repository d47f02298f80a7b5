#pragma once
// Blocks of moments in FP8 (kernels/fp8_moments.h), read and written by CPU kernels.

#include <algorithm>

#include "core/philox.h"
#include "kernels/fp8_moments.h"

namespace ring::cpu {

// Moments of one `target` (Target in kernels/cuda/flat_update.cuh), rounded with the same random bits as on GPUs:
// Philox block 4 j + target holds 16 bits for each of the elements [8 j, 8 j + 8). first: index of element 0 among
// all parameters, a multiple of 8.
template <Fp8Moment form>
class Fp8Moments {
 public:
  Fp8Moments(const Tensor& codes, const Tensor& scales, RandomSite site, std::uint32_t step, std::int64_t first,
             std::uint64_t target)
      : codes_(codes.data<std::uint8_t>()),
        scales_(scales.data<std::uint8_t>()),
        n_(codes.numel()),
        site_{site.seed, step, site.site},
        first_(static_cast<std::uint64_t>(first)),
        target_(target) {}

  void read(std::int64_t block, float* values) const {
    const std::int64_t i = block * kMomentBlock;
    read_moment_block<form>(codes_ + i, scales_[block], size_of_block(i), values);
  }
  void write(std::int64_t block, const float* values) const {
    const std::int64_t i = block * kMomentBlock;
    const std::uint64_t eight = (first_ + static_cast<std::uint64_t>(i)) / 8;
    const Philox4 random[2] = {random_block(site_, 4 * eight + target_),
                               random_block(site_, 4 * (eight + 1) + target_)};
    write_moment_block<form>(values, size_of_block(i), codes_ + i, scales_ + block, [&](std::int64_t j) {
      const std::uint32_t word = random[j / 8].v[j % 8 / 2];
      return j % 2 ? word >> 16 : word & 0xffffu;
    });
  }

 private:
  std::int64_t size_of_block(std::int64_t i) const { return std::min(kMomentBlock, n_ - i); }

  std::uint8_t *codes_, *scales_;
  std::int64_t n_;
  RandomSite site_;
  std::uint64_t first_, target_;
};

}  // namespace ring::cpu
