#include "core/cuda/check.h"

namespace ring::cuda {

void fail_call(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();
  fail("CUDA: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ") in ", call, " [", file, ":", line, "]");
}

}  // namespace ring::cuda
