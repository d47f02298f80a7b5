#include "kernels/row_copy.h"

namespace ring {

void check(const CopyRows& a) {
  RING_CHECK(a.dst.defined() && a.src.defined() && a.dst.shape().size() == 3 && a.src.shape().size() == 3 &&
                 a.dst.dtype() == a.src.dtype() && a.dst.dim(1) == a.src.dim(1) && a.dst.dim(2) == a.src.dim(2),
             "copy_rows: rows of ", describe(a.src), " do not fit into ", describe(a.dst));
  for (const Tensor* t : {&a.dst, &a.src})
    RING_CHECK(t->dim(2) <= 1 || t->stride(2) == 1, "copy_rows: the last dim of ", describe(*t), " has stride ",
               t->stride(2));
  const RowMove& m = a.rows;
  if (m.count == 0) return;
  RING_CHECK(m.count > 0 && m.first >= 0 && m.first + (m.count - 1) * m.step < a.src.dim(0) && m.to >= 0 &&
                 m.to + (m.count - 1) * m.to_step < a.dst.dim(0),
             "copy_rows: ", m.count, " rows from ", m.first, " on, every ", m.step, ", of ", a.src.dim(0), " to ", m.to,
             " on, every ", m.to_step, ", of ", a.dst.dim(0));
}

RowBytes bytes_of(const CopyRows& a) {
  const auto unit = static_cast<std::int64_t>(size_of(a.src.dtype()));
  const std::int64_t heads = a.dst.dim(1), dim = a.dst.dim(2);
  const auto side = [&](const Tensor& t, std::int64_t first, std::int64_t step) {
    return RowBytes::Side{t.raw() + first * t.stride(0) * unit, step * t.stride(0) * unit, t.stride(1) * unit};
  };
  RowBytes b{side(a.dst, a.rows.to, a.rows.to_step), side(a.src, a.rows.first, a.rows.step), a.rows.count, heads,
             dim * unit};
  if (heads == 1 || (a.dst.stride(1) == dim && a.src.stride(1) == dim)) b.width *= heads, b.parts = 1;
  if (b.parts == 1 && b.dst.row == b.width && b.src.row == b.width) b.width *= b.rows, b.rows = 1;
  return b;
}

void copy_rows_by_stream(const CopyRows& a, const ExecContext& ctx) {
  const RowBytes b = bytes_of(a);
  if (b.rows * b.parts == 1) return ctx.stream.impl().copy(b.dst.data, b.src.data, static_cast<std::size_t>(b.width));
  for (std::int64_t h = 0; h < b.parts; ++h)
    ctx.stream.impl().copy_rows(b.dst.data + h * b.dst.part, static_cast<std::size_t>(b.dst.row),
                                b.src.data + h * b.src.part, static_cast<std::size_t>(b.src.row),
                                static_cast<std::size_t>(b.width), static_cast<std::size_t>(b.rows));
}

}  // namespace ring
