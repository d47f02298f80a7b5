// oneDNN generates code for the processor at run time. It is the fastest of the three libraries on training shapes
// (bench/gemm), and the default if the build has it.

#ifdef RING_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"

// oneDNN is usually built with OpenMP, whose thread count is a property of the calling thread. This symbol is defined
// by OpenMP, which oneDNN then loads; it is weak for oneDNN builds without OpenMP.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace ring::cpu {
namespace {

constexpr std::int64_t kWeights = 1 << 16;  // maximum elements of B in a small layer

// Returns true if it is faster to transpose B here before the GEMM. oneDNN packs the transposed B of a small layer
// element by element. With AVX-512 that takes 5 % of the time of a GEMM of 768 rows; transposing B here takes 1 %.
bool packs_slowly(const Gemm& g) {
  return g.transpose_b && g.n * g.k <= kWeights && g.n % 8 == 0 && g.k % 8 == 0 && g.m >= 256;
}

void multiply(const Gemm& g) {
  const dnnl_status_t status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha,
                                          g.a, g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  RING_CHECK(status == dnnl_success, "oneDNN's matrix product of ", g.m, " x ", g.n, " x ", g.k, " failed with status ",
             static_cast<int>(status));
}

void onednn_gemm(const Gemm& g) {
  thread_local const bool single = (omp_set_num_threads ? omp_set_num_threads(1) : void(), true);
  (void)single;
  if (!packs_slowly(g)) return multiply(g);
  thread_local std::vector<float> transposed(kWeights);
  transpose(g.b, g.ldb, g.n, g.k, transposed.data(), g.n);
  Gemm plain = g;
  plain.transpose_b = false, plain.b = transposed.data(), plain.ldb = g.n;
  multiply(plain);
}

const bool added = add_gemm<onednn_gemm>("onednn", 20);

}  // namespace
}  // namespace ring::cpu
#endif
