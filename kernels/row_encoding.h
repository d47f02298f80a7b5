#pragma once
#include "kernels/kernel.h"

namespace ring {

// Rows of heads, encoded for messages between ranks or for a KV cache: as bf16, or as e4m3 (kernels/fp8.h) with one
// scale for each row of a head. The D elements of a row thus share a one-byte scale, which does not depend on how rows
// and heads are divided among messages.
//   values  [n,H,D], contiguous: bf16, or u8 with e4m3 codes
//   scales  u8 [n,H], contiguous: the exponent bits of f32 powers of two; undefined for bf16
struct EncodedRows {
  Tensor values, scales;
};
// accesses: how often each element of the unencoded tensor, which has this type, is read or written
inline Cost cost_of_encoding(const EncodedRows& e, DType type, int accesses) {
  Cost c = cost_of(e.values, {e.values, e.scales});
  c.bytes += accesses * static_cast<double>(e.values.numel()) * static_cast<double>(size_of(type));
  return c;
}

// Encodes rows first, first + step, ... of src [N,H,D], rounding to nearest even. src is f32 or bf16, any strides, unit
// last dim. With e4m3, finite elements never saturate. NaN stays NaN, and a row of a head with an infinity becomes NaN.
struct EncodeRows {
  Tensor src;
  EncodedRows out;
  std::int64_t first = 0, step = 1;
};
inline Cost cost(const EncodeRows& a) { return cost_of_encoding(a.out, a.src.dtype(), 1); }
inline constinit Kernel<EncodeRows> encode_rows_kernel{"encode_rows"};

// Decodes `rows` into rows first, first + step, ... of dst [N,H,D], or adds them there if `add`. dst is f32 or, without
// `add`, may be bf16, with any strides and unit last dim. Other rows of dst stay unchanged.
struct DecodeRows {
  EncodedRows rows;
  Tensor dst;
  std::int64_t first = 0, step = 1;
  bool add = false;
};
inline Cost cost(const DecodeRows& a) { return cost_of_encoding(a.rows, a.dst.dtype(), a.add ? 2 : 1); }
inline constinit Kernel<DecodeRows> decode_rows_kernel{"decode_rows"};

void check(const EncodeRows&);  // throws Error if shapes, types or rows do not fit
void check(const DecodeRows&);

}  // namespace ring
