#pragma once
// Turns CUDA runtime errors into exceptions.

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace ring::cuda {

// Throws Error, or DeviceFailure if a kernel or the device failed. Clears the runtime's last error, so that the next
// check does not report it again.
[[noreturn]] void fail_call(cudaError_t error, const char* call, const char* file, int line);

// Makes this process's first chosen device (OnDevice) current for the calling thread, unless the thread has chosen one
// itself. Call it before every call of the CUDA runtime. The first call of a new thread would otherwise create a
// context on the first GPU. For each process of a node, that costs seconds and 500 MB of the first GPU's memory.
void use_stream_device();

}  // namespace ring::cuda

// Like RING_CHECK, for CUDA runtime calls. The failure of an earlier kernel is reported by the first call after it.
#define RING_CUDA_CHECK(call)                                             \
  do {                                                                    \
    ::ring::cuda::use_stream_device();                                    \
    if (const cudaError_t ring_error = (call); ring_error != cudaSuccess) \
      ::ring::cuda::fail_call(ring_error, #call, __FILE__, __LINE__);     \
  } while (0)
