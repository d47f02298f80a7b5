#include "kernels/cublas/library.h"

#include "core/cuda/launches.h"
#include "core/shared_library.h"
#include "core/unavailable.h"

namespace ring::cublas {
namespace {

SharedLibrary open_library() {
  const std::string name = str("libcublasLt.so.", CUBLAS_VER_MAJOR);
  const SharedLibrary opened = open_shared_library(name, str(RING_CUDA_LIBRARIES, '/', name));
  if (!opened.handle)
    fail_without(Resource::gpu, "device 'cuda' needs ", name, ", which cannot be loaded (", opened.problem,
                 "). Install cuBLAS of CUDA ", CUBLAS_VER_MAJOR, " or add its folder to LD_LIBRARY_PATH");
  return opened;
}

template <class F>
void find(const SharedLibrary& library, const char* name, F& function) {
  function = reinterpret_cast<F>(find_function(library, name));
  if (!function) fail("cuBLASLt: the library has no ", name);
}

Library load() {
  const SharedLibrary h = open_library();
  Library l{};
  find(h, "cublasLtCreate", l.create);
  find(h, "cublasLtDestroy", l.destroy);
  find(h, "cublasLtGetVersion", l.version);
  find(h, "cublasLtMatmul", l.matmul);
  find(h, "cublasLtMatmulAlgoCheck", l.algo_check);
  find(h, "cublasLtMatmulAlgoConfigGetAttribute", l.algo_config_get);
  find(h, "cublasLtMatmulAlgoGetHeuristic", l.heuristic);
  find(h, "cublasLtMatmulDescCreate", l.desc_create);
  find(h, "cublasLtMatmulDescDestroy", l.desc_destroy);
  find(h, "cublasLtMatmulDescSetAttribute", l.desc_set);
  find(h, "cublasLtMatrixLayoutCreate", l.layout_create);
  find(h, "cublasLtMatrixLayoutDestroy", l.layout_destroy);
  find(h, "cublasLtMatrixLayoutSetAttribute", l.layout_set);
  find(h, "cublasLtMatmulPreferenceCreate", l.preference_create);
  find(h, "cublasLtMatmulPreferenceDestroy", l.preference_destroy);
  find(h, "cublasLtMatmulPreferenceSetAttribute", l.preference_set);
  return l;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

void fail_call(cublasStatus_t status, const char* call, const char* file, int line) {
  cuda::check_device();
  fail("cuBLASLt: status ", static_cast<int>(status), " in ", call, " [", file, ":", line, "]");
}

}  // namespace ring::cublas
