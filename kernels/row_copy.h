#pragma once
#include "kernels/kernel.h"

namespace ring {

// Rows first, first + step, .. of one tensor become rows to, to + to_step, .. of another one.
struct RowMove {
  std::int64_t to = 0, first = 0, count = 0, to_step = 1, step = 1;
};

// dst, src [N,H,D], of one type, as many heads and one width, any strides with unit last; they do not overlap. Other
// rows of dst stay as they are.
struct CopyRows {
  Tensor dst, src;
  RowMove rows;
};
inline Cost cost(const CopyRows& a) {
  const double row = static_cast<double>(a.src.dim(1) * a.src.dim(2)) * static_cast<double>(size_of(a.src.dtype()));
  return {0, 2 * static_cast<double>(a.rows.count) * row, short_text(a.dst)};
}
inline constinit Kernel<CopyRows> copy_rows_kernel{"copy_rows"};

// What every backend can do, if more slowly: copies of the stream, one for each head where heads lie apart.
void copy_rows_by_stream(const CopyRows&, const ExecContext&);
void check(const CopyRows&);

// Bytes of which the copies consist: parts of `width` bytes, `parts` in each of so many rows.
struct RowBytes {
  struct Side {
    std::byte* data;
    std::int64_t row, part;  // distances
  };
  Side dst, src;
  std::int64_t rows, parts, width;
};
RowBytes bytes_of(const CopyRows&);

}  // namespace ring
