#include "kernels/row_encoding.h"

#include <bit>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/fp8.h"

namespace ring::cpu {
namespace {

float element(float x) { return x; }
float element(bf16 x) { return to_float(x); }
void set_element(float& to, float x) { to = x; }
void set_element(bf16& to, float x) { to = to_bf16(x); }

// Calls fn(row of a head in the tensor, its number among the encoded rows) for all encoded rows.
template <class T, class Fn>
void for_encoded(const EncodedRows& e, const Tensor& t, std::int64_t first, std::int64_t step, const ExecContext& ctx,
                 const Fn& fn) {
  const std::int64_t heads = e.values.dim(1), dim = e.values.dim(2);
  T* const data = t.data<T>() + first * t.stride(0);
  const std::int64_t row = step * t.stride(0), head = t.stride(1);
  ctx.stream.pool().parallel_for(e.values.dim(0) * heads, row_grain(4 * dim), [&](auto begin, auto end, int) {
    for (std::int64_t i = begin; i < end; ++i) fn(data + i / heads * row + i % heads * head, i);
  });
}

template <class T>
void encode(const EncodeRows& a, const ExecContext& ctx) {
  const std::int64_t dim = a.src.dim(2);
  const bool scaled = a.out.scales.defined();
  bf16* const rounded = scaled ? nullptr : a.out.values.data<bf16>();
  std::uint8_t* const codes = scaled ? a.out.values.data<std::uint8_t>() : nullptr;
  std::uint8_t* const scales = scaled ? a.out.scales.data<std::uint8_t>() : nullptr;
  for_encoded<T>(a.out, a.src, a.first, a.step, ctx, [=](const T* x, std::int64_t i) {
    if (!scaled) {
      for (std::int64_t c = 0; c < dim; ++c) rounded[i * dim + c] = to_bf16(element(x[c]));
      return;
    }
    float max = 0;
    for (std::int64_t c = 0; c < dim; ++c) {
      const float magnitude = std::abs(element(x[c]));
      if (magnitude > max) max = magnitude;  // false for NaN
    }
    const Fp8Scale s = fp8_tensor_scale(max);
    scales[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(s.scale) >> 23);
    for (std::int64_t c = 0; c < dim; ++c) codes[i * dim + c] = to_e4m3(element(x[c]) * s.factor);
  });
}

template <class T>
void decode(const DecodeRows& a, const ExecContext& ctx) {
  const std::int64_t dim = a.dst.dim(2);
  const bool scaled = a.rows.scales.defined(), add = a.add;
  const bf16* const rounded = scaled ? nullptr : a.rows.values.data<bf16>();
  const std::uint8_t* const codes = scaled ? a.rows.values.data<std::uint8_t>() : nullptr;
  const std::uint8_t* const scales = scaled ? a.rows.scales.data<std::uint8_t>() : nullptr;
  for_encoded<T>(a.rows, a.dst, a.first, a.step, ctx, [=](T* y, std::int64_t i) {
    const float scale = scaled ? std::bit_cast<float>(std::uint32_t{scales[i]} << 23) : 1;
    for (std::int64_t c = 0; c < dim; ++c) {
      const float x = scaled ? from_e4m3(codes[i * dim + c]) * scale : to_float(rounded[i * dim + c]);
      set_element(y[c], add ? element(y[c]) + x : x);
    }
  });
}

void run_encode(const EncodeRows& a, const ExecContext& ctx) {
  check(a);
  (a.src.dtype() == DType::bf16 ? encode<bf16> : encode<float>)(a, ctx);
}
void run_decode(const DecodeRows& a, const ExecContext& ctx) {
  check(a);
  (a.dst.dtype() == DType::bf16 ? decode<bf16> : decode<float>)(a, ctx);
}

const bool added_row_encoding[] = {encode_rows_kernel.add(Backend::cpu, {"loops", run_encode}),
                                   decode_rows_kernel.add(Backend::cpu, {"loops", run_decode})};

}  // namespace
}  // namespace ring::cpu
