#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "kernels/matmul.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kColumns = 64;  // columns summed at a time, in registers
constexpr std::int64_t kRows = 256;    // rows per partial sum, which keeps the rounding error of long columns small

// Computes sums[j] += sum over rows of x[row][j], for j < width <= kColumns.
void add_rows(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float* sums) {
  float part[kColumns] = {};
  if (width == kColumns) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < kColumns; ++j) part[j] += x[i * stride + j];
  } else {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < width; ++j) part[j] += x[i * stride + j];
  }
  for (std::int64_t j = 0; j < width; ++j) sums[j] += part[j];
}

// Divides the work by columns: one thread sums each column, in an order that does not depend on the number of threads.
void run_column_sum(const ColumnSum& args, const ExecContext& ctx) {
  const Tensor &x = args.x, &out = args.out;
  RING_CHECK(
      x.shape().size() == 2 && out.numel() == x.dim(1) && out.is_contiguous() && (x.dim(1) <= 1 || x.stride(1) == 1),
      "column_sum of ", describe(x), " into ", describe(out), ": shapes do not fit");
  const float* in = x.data<float>();
  float* to = out.data<float>();
  const std::int64_t rows = x.dim(0), stride = x.stride(0);
  const std::int64_t grain = std::max<std::int64_t>(16, 16384 / std::max<std::int64_t>(1, rows));
  ctx.stream.pool().parallel_for(
      x.dim(1), grain,
      [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t j = begin; j < end; j += kColumns) {
          const std::int64_t width = std::min(kColumns, end - j);
          float sums[kColumns] = {};
          for (std::int64_t i = 0; i < rows; i += kRows)
            add_rows(in + i * stride + j, stride, std::min(kRows, rows - i), width, sums);
          for (std::int64_t c = 0; c < width; ++c)
            to[j + c] = args.beta == 0 ? sums[c] : args.beta * to[j + c] + sums[c];
        }
      },
      16);
}

const bool added = column_sum_kernel.add(Backend::cpu, {"simd", run_column_sum});

}  // namespace
}  // namespace ring::cpu
