#include "core/page_lock.h"

#include <cuda_runtime.h>

#include "core/cuda/check.h"

namespace ring::cuda {
namespace {

std::shared_ptr<void> lock(std::shared_ptr<void> memory, std::size_t bytes) {
  void* const begin = memory.get();
  if (bytes == 0) return memory;
  RING_CUDA_CHECK(cudaHostRegister(begin, bytes, cudaHostRegisterPortable));
  return {begin, [memory = std::move(memory)](void* p) {
            use_stream_device();
            cudaHostUnregister(p);
          }};
}

[[maybe_unused]] const bool registered = register_page_lock(Backend::cuda, lock);

}  // namespace
}  // namespace ring::cuda
