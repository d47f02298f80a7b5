// Eigen is header-only, so every build has it.

// The compiler's own AVX-512 header triggers this warning when it is inlined into Eigen's kernels.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using In = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;
using Out = Eigen::Map<Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class A, class B>
void accumulate(Out& c, float alpha, const A& a, const B& b) {
  c.noalias() += alpha * (a * b);
}

void eigen_gemm(const Gemm& g) {
  const In a(g.a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, Eigen::OuterStride<>(g.lda));
  const In b(g.b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, Eigen::OuterStride<>(g.ldb));
  Out c(g.c, g.m, g.n, Eigen::OuterStride<>(g.ldc));
  if (g.beta == 0)
    c.setZero();
  else if (g.beta != 1)
    c *= g.beta;
  if (g.transpose_a && g.transpose_b)
    accumulate(c, g.alpha, a.transpose(), b.transpose());
  else if (g.transpose_a)
    accumulate(c, g.alpha, a.transpose(), b);
  else if (g.transpose_b)
    accumulate(c, g.alpha, a, b.transpose());
  else
    accumulate(c, g.alpha, a, b);
}

const bool added = add_gemm<eigen_gemm>("eigen", 10);

}  // namespace
}  // namespace ring::cpu
