#include "kernels/row_encoding.h"

namespace ring {
namespace {

void check_encoding(std::string_view op, const EncodedRows& e, const Tensor& t, std::int64_t first, std::int64_t step) {
  const bool scaled = e.values.defined() && e.values.dtype() == DType::u8;
  RING_CHECK(e.values.defined() && e.values.is_contiguous() && e.values.shape().size() == 3 &&
                 (scaled || e.values.dtype() == DType::bf16),
             op, ": expected contiguous rows of heads in bf16 or u8, got ", describe(e.values));
  const std::int64_t rows = e.values.dim(0), heads = e.values.dim(1), dim = e.values.dim(2);
  RING_CHECK(scaled ? e.scales.defined() && e.scales.is_contiguous() && e.scales.dtype() == DType::u8 &&
                          e.scales.numel() == rows * heads
                    : !e.scales.defined(),
             op, ": scales ", describe(e.scales), " do not fit to ", describe(e.values));
  RING_CHECK(t.defined() && t.shape().size() == 3 && t.dim(1) == heads && t.dim(2) == dim, op, ": rows of ",
             describe(e.values), " do not fit to ", describe(t));
  RING_CHECK(dim <= 1 || t.stride(2) == 1, op, ": the last dim of ", describe(t), " has stride ", t.stride(2));
  RING_CHECK(rows == 0 || (first >= 0 && step > 0 && first + (rows - 1) * step < t.dim(0)), op, ": ", rows,
             " rows from ", first, " on, every ", step, ", of ", t.dim(0));
}

}  // namespace

void check(const EncodeRows& a) { check_encoding("encode_rows", a.out, a.src, a.first, a.step); }
void check(const DecodeRows& a) {
  check_encoding("decode_rows", a.rows, a.dst, a.first, a.step);
  RING_CHECK(!a.add || a.dst.dtype() == DType::f32, "decode_rows: adds to f32 only, got ", describe(a.dst));
}

}  // namespace ring
