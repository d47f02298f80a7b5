#pragma once
// Dropout on attention probabilities (Srivastava et al. 2014); kept ones are scaled by 1 / (1 - rate). It is
// counter-based: whether a pair is dropped depends on the query's head and its row in the batch, and on the key's
// position in its packed row, but not on tiles, ranks, micro-batches, branches or the order of the work.

#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace ring {

struct AttentionDropout {
  float rate = 0;  // dropout rate, in [0, 1)
  RandomSite site;
  // Query row n is row first_row + n of the optimizer step's batch, or first_row + rows[n] if `rows` ([N] i32) is
  // defined. Query head h is head first_head + h of the layer.
  std::int64_t first_row = 0, first_head = 0;
  Tensor rows;
  Tensor state;  // StepState in device memory: its step is used instead of site.step; may be undefined
};

// Returns the threshold rate * 2^32: a pair is dropped if its dropout_bits() are below it.
constexpr std::uint32_t dropout_threshold(float rate) { return static_cast<std::uint32_t>(rate * 4294967296.0); }

constexpr std::int64_t kDropoutHeads = 1 << 16;  // maximum number of query heads

// Returns the dropout key of a query row and head, an odd number that all their pairs share. Dropout keys are keys of
// the random number generator (RNG), not attention keys.
RING_HOST_DEVICE constexpr std::uint32_t dropout_row_key(const RandomSite& s, std::int64_t row, std::int64_t head) {
  return random_bits(s, static_cast<std::uint64_t>(row * kDropoutHeads + head)) | 1;
}

// Returns the dropout key of an attention key, an odd number that all its pairs share: a hash of the attention key's
// position, counted from the start of the packed row. The hash is lowbias32 (C. Wellons, hash-prospector, public
// domain).
RING_HOST_DEVICE constexpr std::uint32_t dropout_column_key(std::int32_t position) {
  auto x = static_cast<std::uint32_t>(position);
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return (x ^ x >> 16) | 1;
}

// Returns the 32 random bits of one pair: row_key times column_key, modulo 2^32. This is multiplicative hashing: the
// column key is hashed with a random odd multiplier, which is the row key (M. Dietzfelbinger et al., "A Reliable
// Randomized Algorithm for the Closest-Pair Problem", 1997). The low bits of a product are less random than its high
// bits, but comparisons with the threshold depend almost only on the high bits.
RING_HOST_DEVICE constexpr std::uint32_t dropout_bits(std::uint32_t row_key, std::uint32_t column_key) {
  return row_key * column_key;
}

}  // namespace ring
