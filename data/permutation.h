#pragma once
// A keyed permutation of [0, size) that is computed, not stored: a balanced Feistel network over the next even number
// of bits, applied repeatedly (cycle walking) until the result is in range (Black and Rogaway, "Ciphers with Arbitrary
// Finite Domains", CT-RSA 2002, sections 3 and 5). O(1) per element, at most four applications on average.

#include <bit>
#include <cstdint>

#include "core/check.h"
#include "core/philox.h"

namespace ring {

class Permutation {
 public:
  // Different keys give different permutations. Requires size > 0.
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint32_t key_high, std::uint32_t key_low)
      : size_(size), seed_(seed), high_(key_high), low_(key_low) {
    RING_CHECK(size > 0, "a permutation needs at least one element");
    half_bits_ = (std::bit_width(size - 1) + 1) / 2;
    mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  std::uint64_t operator()(std::uint64_t i) const {
    RING_CHECK(i < size_, "place ", i, " of a permutation of ", size_);
    do i = scramble(i);
    while (i >= size_);
    return i;
  }

 private:
  static constexpr std::uint32_t kRounds = 6;

  std::uint64_t scramble(std::uint64_t x) const {
    if (half_bits_ == 0) return x;
    std::uint64_t left = x >> half_bits_, right = x & mask_;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const Philox4 r = philox(seed_, static_cast<std::uint32_t>(right), round, high_, low_);
      const std::uint64_t next = (left ^ r.v[0]) & mask_;
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t size_, seed_, mask_ = 0;
  std::uint32_t high_, low_;
  int half_bits_ = 0;
};

}  // namespace ring
