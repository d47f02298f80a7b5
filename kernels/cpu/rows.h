#pragma once
// Shared by the row-wise CPU kernels: grain sizes of parallel loops, and sums over rows.

#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "kernels/rows.h"

namespace ring::cpu {

// Minimum work of one part of a parallel loop, in units of a simple element's cost, about 0.2 ns. Smaller parts do not
// pay, since waking a thread takes several us.
inline constexpr std::int64_t kPartWork = 1 << 15;

// Returns the minimum rows of a part if each row costs as much as `work` simple elements.
inline std::int64_t row_grain(std::int64_t work) {
  return std::max<std::int64_t>(1, kPartWork / std::max<std::int64_t>(1, work));
}
// Returns the number of parts of a parallel loop over n rows.
inline int part_count(const ThreadPool& pool, std::int64_t n, std::int64_t grain) {
  return static_cast<int>(std::clamp<std::int64_t>(n / grain, 1, pool.size()));
}

// Per-thread sums of a reduction over rows, added in thread order: bit-identical for a given thread count.
class Partials {
 public:
  Partials(const ExecContext& ctx, int parts, std::int64_t width)
      : pool_(ctx.stream.pool()), sums_(ctx.zeros({parts, width})) {}
  float* operator[](int thread) const { return sums_.data<float>() + thread * sums_.dim(1); }

  // Computes out[c] = beta * out[c] + sum over threads of column first + c, for c in [0, width).
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
