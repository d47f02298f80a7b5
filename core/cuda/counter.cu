#include "core/cuda/check.h"
#include "core/cuda/counter.h"

namespace ring::cuda {
namespace {

__global__ void add_one(volatile std::uint32_t* counter) {
  *counter = *counter + 1;
  __threadfence_system();
}

}  // namespace

void increment_counter(std::uint32_t* counter, cudaStream_t stream) {
  add_one<<<1, 1, 0, stream>>>(counter);
  RING_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ring::cuda
