// oneDNN generates code for the processor at run time. It is the fastest of the three libraries on training shapes
// (bench/gemm), and the default if the build has it.

#ifdef RING_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"

// oneDNN is usually built with OpenMP, whose thread count is a property of the calling thread. This symbol is defined
// by OpenMP, which oneDNN then loads; it is weak for oneDNN builds without OpenMP.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace ring::cpu {
namespace {

constexpr std::int64_t kWeights = 1 << 16;               // maximum number of elements of B in a small layer
constexpr std::int64_t kSlabRows = 64, kMaxSlab = 1024;  // rows of a slab; maximum sum of the widths of A and B

// oneDNN generates code for the CPU that it runs on, whatever this file was compiled for.
bool has_avx512() {
#ifdef __x86_64__
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
#else
  return false;
#endif
}

// Returns true if it is faster to transpose B here before the GEMM. With AVX-512, oneDNN packs the transposed B of a
// small layer element by element. That takes 5 % of the time of a GEMM of 768 rows; transposing B here takes 1 %. With
// AVX2, oneDNN packs it fast, and transposing B here would add 5 %.
bool packs_slowly(const Gemm& g) {
  return has_avx512() && g.transpose_b && g.n * g.k <= kWeights && g.n % 8 == 0 && g.k % 8 == 0 && g.m >= 256;
}

// Returns true if this is the gradient of a small weight matrix, and it is faster with AVX2 to copy A and B before the
// GEMM. oneDNN packs both into panels of a few columns. If rows are 1 KiB or more apart, by a multiple of 512 bytes,
// they map to few cache sets, so packing one panel evicts columns of the next, and every line is read several times.
bool evicts_panels(const Gemm& g) {
  const auto few_sets = [](std::int64_t ld) { return ld >= 256 && ld % 128 == 0; };
  return !has_avx512() && g.transpose_a && !g.transpose_b && (few_sets(g.lda) || few_sets(g.ldb)) &&
         g.m + g.n <= kMaxSlab;
}

void multiply(const Gemm& g) {
  const dnnl_status_t status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha,
                                          g.a, g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  RING_CHECK(status == dnnl_success, "oneDNN's matrix product of ", g.m, " x ", g.n, " x ", g.k, " failed with status ",
             static_cast<int>(status));
}

void multiply_transposed(const Gemm& g) {
  thread_local std::vector<float> transposed(kWeights);
  transpose(g.b, g.ldb, g.n, g.k, transposed.data(), g.n);
  Gemm plain = g;
  plain.transpose_b = false, plain.b = transposed.data(), plain.ldb = g.n;
  multiply(plain);
}

// Multiplies slabs of kSlabRows rows of A and B, copied to rows that are an odd multiple of 64 bytes apart.
void multiply_slabs(const Gemm& g) {
  thread_local std::vector<float> slabs(kSlabRows * (kMaxSlab + 64));
  const auto stride = [](std::int64_t width) { return (width + 15) / 32 * 32 + 16; };
  const auto copy = [](const float* from, std::int64_t ld, std::int64_t rows, std::int64_t width, float* to,
                       std::int64_t to_ld) {
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(from + i * ld, width, to + i * to_ld);
  };
  Gemm slab = g;
  slab.lda = stride(g.m), slab.ldb = stride(g.n);
  float *const a = slabs.data(), *const b = a + kSlabRows * slab.lda;
  slab.a = a, slab.b = b;
  for (std::int64_t row = 0; row < g.k; row += kSlabRows) {
    slab.k = std::min(kSlabRows, g.k - row);
    copy(g.a + row * g.lda, g.lda, slab.k, g.m, a, slab.lda);
    copy(g.b + row * g.ldb, g.ldb, slab.k, g.n, b, slab.ldb);
    multiply(slab);
    slab.beta = 1;
  }
}

void onednn_gemm(const Gemm& g) {
  thread_local const bool single = (omp_set_num_threads ? omp_set_num_threads(1) : void(), true);
  (void)single;
  if (packs_slowly(g)) return multiply_transposed(g);
  if (evicts_panels(g)) return multiply_slabs(g);
  multiply(g);
}

const bool added = add_gemm<onednn_gemm>("onednn", 20);

}  // namespace
}  // namespace ring::cpu
#endif
