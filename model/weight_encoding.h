#pragma once
// The encoded form in which ZeRO-3 gathers the weights of linear layers whose format takes fewer bytes than the values,
// such as FP8. The device holds frozen weights (Param::encoded) only in this form.

#include <cstdint>
#include <vector>

#include "model/params.h"

namespace ring {

struct EncodedRange {
  std::int64_t begin = 0, size = 0;
};

// Consecutive rows of a weight, with their values [rows,columns].
struct WeightRows {
  const Param& weight;
  std::int64_t first = 0;
  Tensor values;
};

// Encodes weights as bytes. Each rank encodes the rows that it owns at their offsets in the bytes of the weight, and
// sends these bytes to the other ranks. Var::value of such a weight is the encoded weight, u8 [bytes()], and only its
// format reads it. All results depend on the values of the whole weight alone, not on the rows that a rank owns.
class WeightEncoding {
 public:
  WeightEncoding() = default;
  virtual ~WeightEncoding() = default;
  WeightEncoding(const WeightEncoding&) = delete;
  WeightEncoding& operator=(const WeightEncoding&) = delete;

  virtual std::int64_t bytes(const Param&) const = 0;  // bytes of an encoded weight
  // The rows of an owner begin at a multiple of this number.
  virtual std::int64_t row_multiple() const { return 1; }
  // Returns the bytes that the owner of these rows sends. Each byte that the format reads is in the ranges of exactly
  // one owner.
  virtual std::vector<EncodedRange> ranges(const Param&, std::int64_t first_row, std::int64_t rows) const = 0;

  // If true, encode() needs the largest magnitude of the whole weight.
  virtual bool needs_max() const { return false; }
  // Raises `max`, f32 [1], to the largest magnitude of the rows, ignoring NaN.
  virtual void raise_max(const WeightRows&, const Tensor& /*max*/, const ExecContext&) const {}
  // Writes the rows' ranges of `encoded`, u8 [bytes()]. `max` is undefined unless needs_max(). May also write bytes
  // that a different owner sends, if that owner writes the same.
  virtual void encode(const WeightRows&, const Tensor& max, const Tensor& encoded, const ExecContext&) const = 0;
};

// Returns the encoding of the weight's format; null if it has no format, or one without an encoding.
const WeightEncoding* encoding_of(const Param&);

}  // namespace ring
