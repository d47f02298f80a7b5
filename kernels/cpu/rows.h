#pragma once
// Shared by the row-wise CPU kernels: rows of a strided tensor, grains of parallel loops, sums over rows.

#include <algorithm>
#include <string_view>

#include "core/cpu/thread_pool.h"
#include "kernels/kernel.h"

namespace ring::cpu {

// A loop part worth handing to another thread, in units of one simple element (about 0.2 ns): waking it costs some us.
inline constexpr std::int64_t kPartWork = 1 << 15;

// Fewest rows of one part when each row is `work` simple elements.
inline std::int64_t row_grain(std::int64_t work) {
  return std::max<std::int64_t>(1, kPartWork / std::max<std::int64_t>(1, work));
}
inline int part_count(const ThreadPool& pool, std::int64_t n, std::int64_t grain) {
  return static_cast<int>(std::clamp<std::int64_t>(n / grain, 1, pool.size()));
}

// The rows of a [N,C] or [N,H,C] tensor with unit last stride.
struct Rows {
  float* data;
  std::int64_t count, width;
  std::int64_t inner, outer_stride, inner_stride;
  float* operator[](std::int64_t r) const {
    if (inner == 1) return data + r * outer_stride;
    return data + r / inner * outer_stride + r % inner * inner_stride;
  }
};

inline Rows rows_of(std::string_view op, std::string_view name, const Tensor& t) {
  RING_CHECK(t.defined() && (t.shape().size() == 2 || t.shape().size() == 3), op, ": ", name, " is ", describe(t),
             ", expected two or three dims");
  RING_CHECK(t.dim(-1) <= 1 || t.stride(-1) == 1, op, ": the last dim of ", name, " ", describe(t), " has stride ",
             t.stride(-1));
  Rows r{t.data<float>(), t.dim(0), t.dim(-1), 1, t.stride(0), 0};
  if (t.shape().size() == 3) {
    r.count *= t.dim(1);
    r.inner = t.dim(1);
    r.inner_stride = t.stride(1);
    if (r.inner == 1 || r.outer_stride == r.inner * r.inner_stride) {  // one stride serves all rows
      r.outer_stride = r.inner == 1 ? r.outer_stride : r.inner_stride;
      r.inner = 1;
    }
  }
  return r;
}

inline void check_shape(std::string_view op, std::string_view name, const Tensor& t, const Shape& want) {
  RING_CHECK(t.defined() && t.shape() == want, op, ": ", name, " is ", describe(t), ", expected ", want);
}
inline void check_numel(std::string_view op, std::string_view name, const Tensor& t, std::int64_t want) {
  RING_CHECK(t.defined() && t.numel() == want && t.contiguous(), op, ": ", name, " is ", describe(t), ", expected ",
             want, " contiguous elements");
}

// Per-thread sums of a reduction over rows, added in thread order: the same bits for the same thread count.
class Partials {
 public:
  Partials(const Context& ctx, int parts, std::int64_t width)
      : pool_(ctx.stream.pool()), sums_(ctx.zeros({parts, width})) {}
  float* operator[](int thread) const { return sums_.data<float>() + thread * sums_.dim(1); }

  // out[c] = beta * out[c] + sum over threads of column `first + c`.
  void add_to(float* out, float beta, std::int64_t first, std::int64_t width) const {
    const std::int64_t parts = sums_.dim(0);
    pool_.parallel_for(
        width, row_grain(parts),
        [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t c = begin; c < end; ++c) {
            float s = 0;
            for (std::int64_t p = 0; p < parts; ++p) s += (*this)[static_cast<int>(p)][first + c];
            out[c] = beta == 0 ? s : beta * out[c] + s;
          }
        },
        16);
  }

 private:
  ThreadPool& pool_;
  Tensor sums_;
};

}  // namespace ring::cpu
