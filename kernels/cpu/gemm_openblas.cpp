// OpenBLAS, loaded when it is asked for and not before: as a plain dependency it starts a thread per core at load time,
// and these spin for a tenth of a second. It ranks last: its table of processors falls back to kernels of 2005 on any
// model newer than the release, four times slower without a word; on models that it knows it is within a tenth of
// Eigen.

#ifdef RING_WITH_OPENBLAS
#include <cblas.h>
#include <dlfcn.h>

#include <cstdlib>

#include "kernels/cpu/gemm.h"

namespace ring::cpu {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

using Sgemm = decltype(&cblas_sgemm);

Sgemm load_sgemm() {
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // read once, at load time: parallelism is our pool's
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  void* symbol = library ? dlsym(library, "cblas_sgemm") : nullptr;
  if (!symbol) fail("cannot load ", kLibrary, ": ", dlerror(), "; install libopenblas0, or unset RINGMASTER_GEMM");
  return reinterpret_cast<Sgemm>(symbol);
}

void openblas_gemm(const Gemm& g) {
  static const Sgemm sgemm = load_sgemm();
  const auto transpose = [](bool t) { return t ? CblasTrans : CblasNoTrans; };
  const auto size = [](std::int64_t n) { return static_cast<blasint>(n); };
  sgemm(CblasRowMajor, transpose(g.transpose_a), transpose(g.transpose_b), size(g.m), size(g.n), size(g.k), g.alpha,
        g.a, size(g.lda), g.b, size(g.ldb), g.beta, g.c, size(g.ldc));
}

const bool added = add_gemm<openblas_gemm>("openblas", 5);

}  // namespace
}  // namespace ring::cpu
#endif
