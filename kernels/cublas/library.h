#pragma once
// cuBLASLt, loaded at its first use: a program that computes on a CPU does not pay for it, nor need it.

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

const Library& library();  // Error: cannot be loaded, and what to install

[[noreturn]] void fail_call(cublasStatus_t, const char* call, const char* file, int line);

}  // namespace ring::cublas

#define RING_CUBLAS_CHECK(call)                                                          \
  do {                                                                                   \
    if (const cublasStatus_t ring_status = (call); ring_status != CUBLAS_STATUS_SUCCESS) \
      ::ring::cublas::fail_call(ring_status, #call, __FILE__, __LINE__);                 \
  } while (0)
