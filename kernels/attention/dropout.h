#pragma once
// Dropout on the weights of attention (Srivastava et al. 2014, scaled as they are kept). A mask has an address, as all
// random numbers here have: it depends on who the query is, and on where the key is in its row of tokens, but not on
// tiles, ranks, micro-batches, branches or the order of the work.

#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace ring {

struct AttentionDropout {
  float rate = 0;  // in [0, 1); 0: nothing is dropped
  RandomSite site;
  // Query row n is row first_row + n of the optimizer step's batch, with rows [N] i32 first_row + rows[n]; query head h
  // is head first_head + h of the model.
  std::int64_t first_row = 0, first_head = 0;
  Tensor rows;
  Tensor state;  // a StepState in device memory, whose step replaces site.step; or undefined
};

// Each pair is judged by 32 bits: dropped where they are below rate * 2^32.
constexpr std::uint32_t dropout_threshold(float rate) { return static_cast<std::uint32_t>(rate * 4294967296.0); }

constexpr std::int64_t kDropoutHeads = 1 << 16;  // that a model may have

// What all pairs of a query's row and head share.
RING_HOST_DEVICE constexpr std::uint32_t dropout_row_key(const RandomSite& s, std::int64_t row, std::int64_t head) {
  return random_bits(s, static_cast<std::uint64_t>(row * kDropoutHeads + head));
}

// What all pairs of a key share, whose position counts from the start of the packed row: multiples of 2^32 over the
// golden ratio, in which neighbours differ in many bits, and positions up to 2^24 apart in enough.
RING_HOST_DEVICE constexpr std::uint32_t dropout_column_key(std::int32_t position) {
  return static_cast<std::uint32_t>(position) * 0x9e3779b9u;
}

// The bits of one pair. The multipliers and the shift are those of lowbias32, a bijection of 32 bits that was searched
// for by its avalanche (C. Wellons, hash-prospector, public domain), without its first and last steps: the row key is
// random already, and the low bits of the result hardly count.
RING_HOST_DEVICE constexpr std::uint32_t dropout_bits(std::uint32_t row_key, std::uint32_t column_key) {
  const std::uint32_t x = (row_key ^ column_key) * 0x7feb352du;
  return (x ^ x >> 15) * 0x846ca68bu;
}

}  // namespace ring
