#pragma once
// Dropout on the CPU's weights, row by row of a tile.

#include "kernels/attention/cpu/common.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/head_segment.h"
#include "kernels/rows.h"

namespace ring::cpu {

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
  // The weights that n queries give one key.
  void apply(float* weights, const std::uint32_t* row_keys, std::uint32_t column_key, std::int64_t n) const {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < n; ++j)
      weights[j] *= dropout_bits(row_keys[j], column_key) < threshold_ ? 0.0f : scale_;
  }
  // What the weights of samples key .. key + n of a row become is their product with these.
  void factors(float* factor, std::uint32_t row_key, const HeadSegment& s, std::int32_t key, std::int64_t n) const {
    const std::uint32_t first = dropout_column_key(s.position + key * s.rate), step = dropout_column_key(s.rate);
#pragma GCC ivdep
    for (std::uint32_t j = 0; j < static_cast<std::uint32_t>(n); ++j)
      factor[j] = dropout_bits(row_key, first + j * step) < threshold_ ? 0.0f : scale_;
  }

 private:
  RandomSite site_;
  std::int64_t first_row_, first_head_;
  const std::int32_t* rows_;
  std::uint32_t threshold_;
  float scale_;
};

}  // namespace ring::cpu
