#pragma once
// cuBLASLt, loaded with dlopen at its first use, so that programs that compute on CPUs neither load nor need it.

#include <cublasLt.h>

#include <string>

#include "core/check.h"

namespace ring::cublas {

struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_config_get;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

// Returns the library. Throws Error, saying what to install, if it cannot be loaded.
const Library& library();

// Throws Error, naming the call, its source location and the status; or the device's error if the device has failed.
[[noreturn]] void fail_call(cublasStatus_t, const char* call, const char* file, int line);

}  // namespace ring::cublas

#define RING_CUBLAS_CHECK(call)                                                          \
  do {                                                                                   \
    if (const cublasStatus_t ring_status = (call); ring_status != CUBLAS_STATUS_SUCCESS) \
      ::ring::cublas::fail_call(ring_status, #call, __FILE__, __LINE__);                 \
  } while (0)
