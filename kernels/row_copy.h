#pragma once
#include "kernels/kernel.h"

namespace ring {

// Copies `count` rows: rows first, first + step, ... of one tensor become rows to, to + to_step, ... of another.
struct RowMove {
  std::int64_t to = 0, first = 0, count = 0, to_step = 1, step = 1;
};

// dst and src are [N,H,D] of one type, with equal H and D, and any strides with unit last dim. They must not overlap.
// Other rows of dst stay unchanged.
struct CopyRows {
  Tensor dst, src;
  RowMove rows;
};
inline Cost cost(const CopyRows& a) {
  const double row = static_cast<double>(a.src.dim(1) * a.src.dim(2)) * static_cast<double>(size_of(a.src.dtype()));
  return {0, 2 * static_cast<double>(a.rows.count) * row, short_text(a.dst)};
}
inline constinit Kernel<CopyRows> copy_rows_kernel{"copy_rows"};

// Copies with the stream's copy functions, which every backend has but which are slower. If heads are not adjacent in
// memory, it needs one copy per head.
void copy_rows_by_stream(const CopyRows&, const ExecContext&);
void check(const CopyRows&);  // throws Error if shapes or rows do not fit

// A strided copy in bytes. Each of `rows` rows has `parts` parts of `width` contiguous bytes.
struct RowBytes {
  struct Side {
    std::byte* data;
    std::int64_t row, part;  // distances in bytes from one row to the next, and from one part of a row to the next
  };
  Side dst, src;
  std::int64_t rows, parts, width;
};
RowBytes bytes_of(const CopyRows&);

}  // namespace ring
