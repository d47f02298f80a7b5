// Registers a kernel that fails on purpose, for fault injection (--inject).
#include "core/cuda/check.h"
#include "core/cuda/handles.h"
#include "core/cuda/launches.h"
#include "core/device_failure.h"

namespace ring::cuda {
namespace {

__global__ void fail_on_purpose() { __trap(); }

// Launches the kernel on its own stream, since other streams may be recording a graph.
bool break_device() {
  if (launch_count() == 0) return false;
  int device = 0;
  RING_CUDA_CHECK(cudaGetDevice(&device));
  const StreamHandle stream(device);
  fail_on_purpose<<<1, 1, 0, stream.get()>>>();
  RING_CUDA_CHECK(cudaGetLastError());
  return true;
}

const bool added = register_device_breaker(break_device);

}  // namespace
}  // namespace ring::cuda
