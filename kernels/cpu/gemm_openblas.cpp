// OpenBLAS, loaded at its first use. If it were linked, it would start one thread per core at load time, and
// these threads spin for 0.1 s. It has the lowest priority: on processors newer than its release, it
// silently falls back to kernels of 2005, which are four times slower. On processors that it knows, its
// speed is within 10 % of Eigen's.

#ifdef RING_WITH_OPENBLAS
#include <cblas.h>
#include <dlfcn.h>

#include <cstdlib>

#include "core/checked.h"
#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

using Sgemm = decltype(&cblas_sgemm);

Sgemm load_sgemm() {
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // read once, at load time; parallelism comes from our thread pool
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  void* symbol = library ? dlsym(library, "cblas_sgemm") : nullptr;
  if (!symbol) fail("cannot load ", kLibrary, ": ", dlerror(), ". Install libopenblas0, or unset RINGMASTER_GEMM");
  return reinterpret_cast<Sgemm>(symbol);
}

void openblas_gemm(const Gemm& g) {
  static const Sgemm sgemm = load_sgemm();
  const auto transpose = [](bool t) { return t ? CblasTrans : CblasNoTrans; };
  const auto size = [](std::int64_t n) { return narrow<blasint>(n); };
  sgemm(CblasRowMajor, transpose(g.transpose_a), transpose(g.transpose_b), size(g.m), size(g.n), size(g.k), g.alpha,
        g.a, size(g.lda), g.b, size(g.ldb), g.beta, g.c, size(g.ldc));
}

const bool added = add_gemm<openblas_gemm>("openblas", 5);

}  // namespace
}  // namespace ring::cpu
#endif
