#pragma once
// Attention dropout on CPUs, strip by strip.

#include "kernels/attention/cpu/tiles.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/head_segment.h"
#include "kernels/rows.h"

namespace ring::cpu {

// The dropout mask of one attention call.
class Mask {
 public:
  explicit Mask(const AttentionDropout& d)
      : site_(d.site),
        first_row_(d.first_row),
        first_head_(d.first_head),
        rows_(d.rows.defined() ? d.rows.data<std::int32_t>() : nullptr),
        threshold_(dropout_threshold(d.rate)),
        scale_(1 / (1 - d.rate)) {
    if (d.state.defined()) site_.step = state_of("attention", d.state).step;
  }

  bool drops() const { return threshold_ > 0; }
  std::uint32_t row_key(std::int64_t row, std::int64_t head) const {
    return dropout_row_key(site_, first_row_ + (rows_ ? rows_[row] : row), first_head_ + head);
  }
  // Drops or scales the probabilities of n queries for one key.
  void apply(float* weights, const std::uint32_t* row_keys, std::uint32_t column_key, std::int64_t n) const {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < n; ++j)
      weights[j] *= dropout_bits(row_keys[j], column_key) < threshold_ ? 0.0f : scale_;
  }

 private:
  RandomSite site_;
  std::int64_t first_row_, first_head_;
  const std::int32_t* rows_;
  std::uint32_t threshold_;
  float scale_;
};

// Applies the mask to a strip's probabilities, or to their gradients: a row per key of the tile, a column per query.
inline void drop(const Mask& mask, const Strip& t, const std::uint32_t* row_keys, float* weights) {
  const HeadSegment& s = t.segment;
  for (std::int64_t k = t.seen.first; k < t.seen.first + t.seen.count; ++k)
    mask.apply(weights + k * kStrip, row_keys,
               dropout_column_key(static_cast<std::int32_t>(s.position + (t.key + k) * s.rate)), kStrip);
}

}  // namespace ring::cpu
