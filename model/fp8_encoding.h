#pragma once
// Encoding of FP8 weights that ZeRO-3 gathers, and in which devices hold frozen weights: the values of the whole
// matrix, one byte each, followed by the scales.

#include "kernels/fp8.h"
#include "model/weight_encoding.h"

namespace ring {

class Fp8Encoding final : public WeightEncoding {
 public:
  // blocks: squares or tensor. Weights must have row and column counts that are multiples of 16.
  explicit Fp8Encoding(Fp8Blocks blocks) : blocks_(blocks) {}

  // Returns a view of the encoded weight's bytes as a matrix.
  Fp8Matrix matrix(const Param&, const Tensor& encoded) const;

  std::int64_t bytes(const Param&) const override;
  // Each 128 x 128 block has a single owner, which computes the scale without messages.
  std::int64_t row_multiple() const override { return blocks_ == Fp8Blocks::squares ? kFp8Block : 1; }
  std::vector<EncodedRange> ranges(const Param&, std::int64_t first_row, std::int64_t rows) const override;
  bool needs_max() const override { return blocks_ == Fp8Blocks::tensor; }
  void raise_max(const WeightRows&, const Tensor& max, const ExecContext&) const override;
  void encode(const WeightRows&, const Tensor& max, const Tensor& encoded, const ExecContext&) const override;

 private:
  std::int64_t scale_rows(std::int64_t rows) const { return needs_max() ? 1 : fp8_blocks(rows); }
  std::int64_t scale_columns(const Param& p) const { return needs_max() ? 1 : fp8_blocks(p.shape[1]); }
  std::int64_t scale_row_bytes(const Param&) const;

  Fp8Blocks blocks_;
};

}  // namespace ring
