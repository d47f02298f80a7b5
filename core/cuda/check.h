#pragma once
// Failures of the CUDA runtime as ring::Error.

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace ring::cuda {

// Clears the runtime's record of the error, so that the next check does not report it again.
[[noreturn]] void fail_call(cudaError_t error, const char* call, const char* file, int line);

// Makes the device that this process chose first (OnDevice) current for the calling thread, unless the thread has
// chosen one itself. Comes before each call of the CUDA runtime. Without it, a new thread would be on the first GPU,
// and its first call would make a context there: in each process of a node, that takes seconds and 500 MB of the first
// GPU.
void choose_device();

}  // namespace ring::cuda

// The twin of RING_CHECK for runtime calls. An earlier kernel's failure shows at the first call after it.
#define RING_CUDA_CHECK(call)                                             \
  do {                                                                    \
    ::ring::cuda::choose_device();                                        \
    if (const cudaError_t ring_error = (call); ring_error != cudaSuccess) \
      ::ring::cuda::fail_call(ring_error, #call, __FILE__, __LINE__);     \
  } while (0)
