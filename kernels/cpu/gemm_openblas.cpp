// OpenBLAS. It ranks below Eigen: its release-wide table of processors falls back to kernels of 2005 on any model that
// it does not know, which costs a factor of four without a word; on models that it knows it is within a tenth of Eigen.

#ifdef RING_WITH_OPENBLAS
#include <cblas.h>

#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

void openblas_gemm(const Gemm& g) {
  static const bool single = (openblas_set_num_threads(1), true);  // once: parallelism is the pool's
  (void)single;
  const auto transpose = [](bool t) { return t ? CblasTrans : CblasNoTrans; };
  const auto size = [](std::int64_t n) { return static_cast<blasint>(n); };
  cblas_sgemm(CblasRowMajor, transpose(g.transpose_a), transpose(g.transpose_b), size(g.m), size(g.n), size(g.k),
              g.alpha, g.a, size(g.lda), g.b, size(g.ldb), g.beta, g.c, size(g.ldc));
}

const bool added = add_gemm<openblas_gemm>("openblas", 5);

}  // namespace
}  // namespace ring::cpu
#endif
