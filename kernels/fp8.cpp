#include "kernels/fp8.h"

#include "kernels/choice.h"
#include "kernels/rows.h"

namespace ring {
namespace {

constexpr std::int64_t kRowBytes = 16;  // alignment of rows in bytes

Tensor empty_rows(const Shape& shape, DType dtype, const ExecContext& ctx, Lifetime lifetime) {
  const auto multiple = kRowBytes / static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t padded = (shape[1] + multiple - 1) / multiple * multiple;
  return ctx.empty({shape[0], padded}, dtype, lifetime).narrow(1, 0, shape[1]);
}

Shape scales_shape(std::int64_t rows, std::int64_t columns, Fp8Blocks blocks) {
  switch (blocks) {
    case Fp8Blocks::rows: return {fp8_blocks(columns), rows};
    case Fp8Blocks::squares: return {fp8_blocks(rows), fp8_blocks(columns)};
    default: return {1, 1};
  }
}

void check_rows(std::string_view op, std::string_view name, const Tensor& t, const Shape& shape, DType dtype) {
  check_shape(op, name, t, shape);
  const std::int64_t bytes = t.stride(0) * static_cast<std::int64_t>(size_of(dtype));
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.raw()));
  RING_CHECK(t.dtype() == dtype && t.stride(1) == 1 && bytes % kRowBytes == 0 && address % kRowBytes == 0, op, ": ",
             name, " is ", describe(t), " with strides ", t.strides(), ", expected rows of ", dtype, " that start at ",
             "multiples of ", kRowBytes, " bytes");
}

}  // namespace

void check_fp8_matrix(std::string_view op, std::string_view name, const Fp8Matrix& m, std::int64_t rows,
                      std::int64_t columns) {
  check_rows(op, str(name, ".values"), m.values, {rows, columns}, DType::u8);
  check_rows(op, str(name, ".scales"), m.scales, scales_shape(rows, columns, m.blocks), DType::f32);
}

Fp8Matrix empty_fp8(std::int64_t rows, std::int64_t columns, Fp8Blocks blocks, const ExecContext& ctx,
                    Lifetime lifetime) {
  return {empty_rows({rows, columns}, DType::u8, ctx, lifetime),
          empty_rows(scales_shape(rows, columns, blocks), DType::f32, ctx, lifetime), blocks};
}

void check(const QuantizeFp8& q) {
  constexpr std::string_view op = "quantize_fp8";
  RING_CHECK(q.x.defined() && q.x.shape().size() == 2 && (q.x.dim(1) <= 1 || q.x.stride(1) == 1), op, ": x is ",
             describe(q.x), ", expected a matrix with unit last stride");
  const std::int64_t rows = q.x.dim(0), columns = q.x.dim(1);
  if (q.out.defined()) check_fp8_matrix(op, "out", q.out, rows, columns);
  if (q.transposed.defined()) check_fp8_matrix(op, "transposed", q.transposed, columns, rows);
  RING_CHECK(!q.out.defined() || !q.transposed.defined() || q.out.blocks == q.transposed.blocks ||
                 (q.out.blocks == Fp8Blocks::rows && q.transposed.blocks == Fp8Blocks::squares),
             op, ": out and transposed differ in their blocks, expected the same, or rows and squares");
  const bool tensorwise = is_tensorwise(q.out, q.transposed, q.max);
  RING_CHECK(q.max.value.defined() == tensorwise, op, ": ",
             tensorwise ? "max.value is undefined, expected f32 [1] for tensorwise outputs"
                        : "max.value is defined, but blockwise outputs have no maximum");
  if (!tensorwise) return;
  check_shape(op, "max", q.max.value, {1});
  RING_CHECK(q.max.value.dtype() == DType::f32, op, ": max is ", describe(q.max.value), ", expected f32");
}

void check(const TransposeFp8& t) {
  constexpr std::string_view op = "transpose_fp8";
  RING_CHECK(t.x.defined() && t.x.values.shape().size() == 2, op, ": x is ", describe(t.x.values),
             ", expected a matrix");
  check_fp8_matrix(op, "x", t.x, t.x.values.dim(0), t.x.values.dim(1));
  check_fp8_matrix(op, "out", t.out, t.x.values.dim(1), t.x.values.dim(0));
  RING_CHECK(t.x.blocks == t.out.blocks && t.x.blocks != Fp8Blocks::rows, op,
             ": x and out must both have square blocks or one scale per tensor");
}

void check(const DequantizeFp8& d) {
  constexpr std::string_view op = "dequantize_fp8";
  RING_CHECK(d.x.defined() && d.x.values.shape().size() == 2 && d.x.blocks == Fp8Blocks::rows, op, ": x is ",
             describe(d.x.values), ", expected a matrix with blocks of rows");
  check_fp8_matrix(op, "x", d.x, d.x.values.dim(0), d.x.values.dim(1));
  check_shape(op, "out", d.out, d.x.values.shape());
  RING_CHECK(
      (d.out.dtype() == DType::f32 || d.out.dtype() == DType::bf16) && (d.out.dim(1) <= 1 || d.out.stride(1) == 1), op,
      ": out is ", describe(d.out), ", expected f32 or bf16 with unit last stride");
}

void check(const MatmulFp8& m) {
  constexpr std::string_view op = "matmul_fp8";
  RING_CHECK(m.c.defined() && m.c.shape().size() == 2 && m.a.defined() && m.a.values.shape().size() == 2, op, ": c is ",
             describe(m.c), ", a is ", describe(m.a.values), ", expected matrices");
  const std::int64_t k = m.a.values.dim(1);
  check_fp8_matrix(op, "a", m.a, m.c.dim(0), k);
  check_fp8_matrix(op, "b", m.b, m.c.dim(1), k);
  RING_CHECK((m.a.blocks == Fp8Blocks::rows && m.b.blocks == Fp8Blocks::squares) ||
                 (m.a.blocks == Fp8Blocks::tensor && m.b.blocks == Fp8Blocks::tensor),
             op, ": expected a in blocks of rows and b in square blocks, or one scale for each");
  check_rows(op, "c", m.c, m.c.shape(), m.c.dtype());
  RING_CHECK(m.c.dtype() == DType::f32 || (m.c.dtype() == DType::bf16 && !m.accumulate), op, ": c is ", describe(m.c),
             m.accumulate ? ", expected f32 to accumulate in" : ", expected f32 or bf16");
  RING_CHECK(!m.accumulate || (!m.bias.defined() && !m.residual.defined()), op,
             ": a bias or a residual is added, but c is accumulated in");
  if (m.residual.defined()) check_rows(op, "residual", m.residual, m.c.shape(), m.c.dtype());
  const auto address = reinterpret_cast<std::uintptr_t>(m.bias.defined() ? m.bias.raw() : nullptr);
  RING_CHECK(
      !m.bias.defined() || (m.bias.shape() == Shape{m.c.dim(1)} && m.bias.dtype() == m.c.dtype() && address % 4 == 0),
      op, ": bias is ", describe(m.bias), " for c ", describe(m.c), ", expected a vector at a multiple of 4 bytes");
}

Cost cost(const MatmulFp8& m) {
  const std::int64_t k = m.a.values.dim(1);
  // The shape of blockwise GEMMs is followed by a w, that of tensorwise GEMMs by a t.
  return {2 * static_cast<double>(m.c.numel()) * static_cast<double>(k),
          bytes_of(
              {m.a.values, m.a.scales, m.b.values, m.b.scales, m.c, m.accumulate ? m.c : Tensor{}, m.bias, m.residual}),
          str("e4m3[", m.c.dim(0), 'x', m.c.dim(1), 'x', k, ']', m.b.blocks == Fp8Blocks::tensor ? "t" : "w",
              m.accumulate ? "+c" : "", m.bias.defined() ? "+bias" : "", m.residual.defined() ? "+residual" : "")};
}

const Kernel<MatmulFp8>::Candidate& choose_fastest(const Kernel<MatmulFp8>& slot, const MatmulFp8& args,
                                                   const ExecContext& ctx) {
  const auto key = [](const MatmulFp8& m) { return str(cost(m).shape, " to ", m.c.dtype()); };
  // Replaces c by a temporary tensor if the GEMM accumulates into c, so that measuring does not change c.
  const auto repeatable = [](MatmulFp8 m, const ExecContext& context) {
    if (m.accumulate) m.c = context.zeros(m.c.shape(), m.c.dtype(), Lifetime::run);
    return m;
  };
  return choose_measured(slot, args, ctx, key, repeatable);
}

}  // namespace ring
