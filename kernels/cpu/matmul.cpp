#include "kernels/matmul.h"

#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/matmul_gelu.h"

namespace ring::cpu {
namespace {

constexpr std::int64_t kAlign = 16;          // parts start at multiples of it, so that they have whole vectors
constexpr std::int64_t kPartWork = 1 << 17;  // minimum multiply-adds per thread; with fewer, threads do not pay off

// Division of C into rows x cols parts.
struct Grid {
  int rows = 1, cols = 1;
};

// Returns the size of the largest part if n rows or columns are divided into `parts` parts.
std::int64_t widest_part(std::int64_t n, int parts) {
  const std::int64_t blocks = (n + kAlign - 1) / kAlign;
  return std::min(n, (blocks + parts - 1) / parts * kAlign);
}

// Returns the grid whose largest part has the smallest area. Among grids of equal area, returns the one whose largest
// part has the shortest sides, since it reads the least of A and B.
Grid choose_grid(std::int64_t m, std::int64_t n, int parts) {
  Grid best;
  std::int64_t best_area = m * n, best_sides = m + n;
  for (int cols = 1; cols <= parts; ++cols) {
    const int rows = parts / cols;
    const std::int64_t tm = widest_part(m, rows), tn = widest_part(n, cols);
    if (tm * tn > best_area || (tm * tn == best_area && tm + tn >= best_sides)) continue;
    best = {rows, cols};
    best_area = tm * tn;
    best_sides = tm + tn;
  }
  return best;
}

std::int64_t row_distance(const Tensor& t) {
  RING_CHECK(t.dim(1) <= 1 || t.stride(1) == 1, "matmul: the last dim of ", describe(t), " is strided by ",
             t.stride(1));
  return t.dim(0) <= 1 ? std::max<std::int64_t>(1, t.dim(1)) : t.stride(0);
}

Gemm whole_product(const Matmul& args) {
  const Tensor &a = args.a, &b = args.b, &c = args.c;
  const auto matrix = [](const Tensor& t) { return t.shape().size() == 2; };
  RING_CHECK(matrix(a) && matrix(b) && matrix(c), "matmul of ", describe(a), " and ", describe(b), " into ",
             describe(c), ": all must be matrices");
  Gemm g{.transpose_a = args.transpose_a, .transpose_b = args.transpose_b};
  g.m = a.dim(args.transpose_a ? 1 : 0);
  g.k = a.dim(args.transpose_a ? 0 : 1);
  g.n = b.dim(args.transpose_b ? 0 : 1);
  RING_CHECK(b.dim(args.transpose_b ? 1 : 0) == g.k && c.dim(0) == g.m && c.dim(1) == g.n, "matmul of ", describe(a),
             args.transpose_a ? "^T" : "", " and ", describe(b), args.transpose_b ? "^T" : "", " into ", describe(c),
             ": shapes do not fit");
  g.a = a.data<float>(), g.lda = row_distance(a);
  g.b = b.data<float>(), g.ldb = row_distance(b);
  g.c = c.data<float>(), g.ldc = row_distance(c);
  g.beta = args.beta;
  return g;
}

const float* checked_bias(const Matmul& args, std::int64_t n) {
  if (!args.bias.defined()) return nullptr;
  RING_CHECK(args.beta == 0, "matmul: a bias requires beta = 0, got ", args.beta);
  RING_CHECK(args.bias.is_contiguous() && args.bias.numel() == n, "matmul: bias ", describe(args.bias), " for ", n,
             " columns");
  return args.bias.data<float>();
}

// Initial value of C if it is not accumulated into: the bias, the residual or their sum.
struct Start {
  const float* bias = nullptr;
  const float* residual = nullptr;
  std::int64_t residual_stride = 0;
  explicit operator bool() const { return bias || residual; }
  // Writes the initial value of g's part of C, which starts at row i0 and column j0.
  void fill(const Gemm& g, std::int64_t i0, std::int64_t j0) const {
    for (std::int64_t i = 0; i < g.m; ++i) {
      float* to = g.c + i * g.ldc;
      const float* from = residual ? residual + (i0 + i) * residual_stride + j0 : bias + j0;
      std::copy_n(from, g.n, to);
      if (!bias || !residual) continue;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < g.n; ++j) to[j] += bias[j0 + j];
    }
  }
};

Start checked_start(const Matmul& args, std::int64_t n) {
  Start start{.bias = checked_bias(args, n)};
  if (!args.residual.defined()) return start;
  RING_CHECK(args.beta == 0 && args.residual.shape() == args.c.shape(), "matmul: residual ", describe(args.residual),
             " for ", describe(args.c), ", beta ", args.beta);
  start.residual = args.residual.data<float>();
  start.residual_stride = row_distance(args.residual);
  return start;
}

// Computes one thread's part: rows [i0,i1) and columns [j0,j1) of C. Writes bias and residual first, then accumulates
// the GEMM into them.
void run_part(Gemm g, const Start& start, std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1,
              GemmFn fn) {
  if (i0 >= i1 || j0 >= j1) return;
  g.a += g.transpose_a ? i0 : i0 * g.lda;
  g.b += g.transpose_b ? j0 * g.ldb : j0;
  g.c += i0 * g.ldc + j0;
  g.m = i1 - i0;
  g.n = j1 - j0;
  if (start) {
    start.fill(g, i0, j0);
    g.beta = 1;
  }
  g.k > 0 ? fn(g) : gemm(g);
}

}  // namespace

void pooled_matmul(const Matmul& args, const ExecContext& ctx, GemmFn fn) {
  if (has_gelu(args))
    return product_then_gelu(args, ctx, [fn](const Matmul& m, const ExecContext& c) { pooled_matmul(m, c, fn); });
  const Gemm g = whole_product(args);
  const Start start = checked_start(args, g.n);
  ThreadPool& pool = ctx.stream.pool();
  const std::int64_t worth = std::max<std::int64_t>(1, g.m * g.n * std::max<std::int64_t>(1, g.k) / kPartWork);
  const Grid grid = choose_grid(g.m, g.n, static_cast<int>(std::min<std::int64_t>(pool.size(), worth)));
  pool.parallel_for(grid.rows * grid.cols, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t part = begin; part < end; ++part) {
      const int r = static_cast<int>(part) / grid.cols, c = static_cast<int>(part) % grid.cols;
      run_part(g, start, ThreadPool::part_begin(g.m, kAlign, grid.rows, r),
               ThreadPool::part_begin(g.m, kAlign, grid.rows, r + 1), ThreadPool::part_begin(g.n, kAlign, grid.cols, c),
               ThreadPool::part_begin(g.n, kAlign, grid.cols, c + 1), fn);
    }
  });
}

}  // namespace ring::cpu
