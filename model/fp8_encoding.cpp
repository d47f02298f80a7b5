#include "model/fp8_encoding.h"

namespace ring {
namespace {

std::int64_t aligned_bytes(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

// Returns the bytes of a row of scales, padded so that rows start at multiples of 16 bytes (Fp8Matrix).
std::int64_t Fp8Encoding::scale_row_bytes(const Param& p) const {
  return aligned_bytes(scale_columns(p) * static_cast<std::int64_t>(sizeof(float)), 16);
}

std::int64_t Fp8Encoding::bytes(const Param& p) const {
  return aligned_bytes(p.shape.numel() + scale_rows(p.shape[0]) * scale_row_bytes(p), 64);
}

Fp8Matrix Fp8Encoding::matrix(const Param& p, const Tensor& encoded) const {
  const std::int64_t rows = scale_rows(p.shape[0]);
  const Tensor scales = encoded.narrow(0, p.shape.numel(), rows * scale_row_bytes(p)).view_as(DType::f32);
  return {encoded.narrow(0, 0, p.shape.numel()).view(p.shape), scales.view({rows, -1}).narrow(1, 0, scale_columns(p)),
          blocks_};
}

std::vector<EncodedRange> Fp8Encoding::ranges(const Param& p, std::int64_t first_row, std::int64_t rows) const {
  const EncodedRange values{first_row * p.shape[1], rows * p.shape[1]};
  const std::int64_t row_bytes = scale_row_bytes(p);
  if (!needs_max())
    return {values, {p.shape.numel() + first_row / kFp8Block * row_bytes, fp8_blocks(rows) * row_bytes}};
  if (first_row > 0) return {values};
  return {values, {p.shape.numel(), row_bytes}};
}

void Fp8Encoding::raise_max(const WeightRows& rows, const Tensor& max, const ExecContext& ctx) const {
  quantize_fp8_kernel({rows.values, {}, {}, {max}}, ctx);
}

void Fp8Encoding::encode(const WeightRows& rows, const Tensor& max, const Tensor& encoded,
                         const ExecContext& ctx) const {
  RING_CHECK(rows.first % row_multiple() == 0, rows.weight.parts[0].name, ": rows from row ", rows.first,
             " on do not begin with a block");
  const std::int64_t count = rows.values.dim(0);
  Fp8Matrix part = matrix(rows.weight, encoded);
  part.values = part.values.narrow(0, rows.first, count);
  if (!needs_max()) part.scales = part.scales.narrow(0, rows.first / kFp8Block, fp8_blocks(count));
  quantize_fp8_kernel({rows.values, part, {}, {max, needs_max()}}, ctx);
}

}  // namespace ring
