#pragma once
// Rows that belong to no document.

#include "kernels/attention/attention.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

// Multiplies `count` rows of `inner` heads by beta; if beta is 0, writes zeros without reading.
template <class T>
__global__ void __launch_bounds__(kBlock) scale_rows(T* data, std::int64_t stride, std::int64_t head_stride, int heads,
                                                     int width, std::int64_t count, float beta) {
  const std::int64_t row_items = std::int64_t{heads} * width;
  for (std::int64_t i = thread_x(); i < count * row_items; i += threads_x()) {
    const std::int64_t row = i / row_items, item = i - row * row_items;
    T& x = data[row * stride + item / width * head_stride + item % width];
    x = from_float<T>(beta == 0 ? 0.0f : beta * to_float(x));
  }
}

// Multiplies the rows of t [N,C] or [N,H,C] that are in no document by beta. t may be undefined.
inline void scale_rows_outside(const char* op, const Tensor& t, float beta, const std::vector<Span>& documents,
                               const ExecContext& ctx) {
  if (!t.defined() || beta == 1) return;
  const bool heads = t.shape().size() == 3;
  const std::int64_t count = heads ? t.dim(1) : 1, width = t.dim(-1);
  visit_float(op, t.dtype(), [&]<class T>() {
    for_rows_outside(documents, t.dim(0), [&](std::int64_t first, std::int64_t rows) {
      launch(ctx, elements(ctx, rows * count * width), scale_rows<T>, device_data<T>(t) + first * t.stride(0),
             t.stride(0), heads ? t.stride(1) : 0, static_cast<int>(count), static_cast<int>(width), rows, beta);
    });
  });
}

}  // namespace ring::cuda
