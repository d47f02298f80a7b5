// Queues copies within host memory on a CUDA stream. A thread of the driver makes the copy (cudaLaunchHostFunc).
#include <cuda_runtime.h>

#include <cstring>
#include <memory>

#include "core/cuda/check.h"
#include "core/host_tensor.h"

namespace ring::cuda {
namespace {

struct HostBytes {
  void* dst;
  const void* src;
  std::size_t bytes;
};

void CUDART_CB run(void* data) {
  const std::unique_ptr<HostBytes> copy(static_cast<HostBytes*>(data));
  std::memcpy(copy->dst, copy->src, copy->bytes);
}

void host_copy(void* dst, const void* src, std::size_t bytes, const Stream& stream) {
  auto copy = std::make_unique<HostBytes>(HostBytes{dst, src, bytes});
  RING_CUDA_CHECK(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.native()), run, copy.get()));
  static_cast<void>(copy.release());  // run() deletes it
}

[[maybe_unused]] const bool registered = register_host_copy(Backend::cuda, host_copy);

}  // namespace
}  // namespace ring::cuda
