#pragma once
// Progress counters in page-locked host memory, which a GPU increments and the host reads.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ring::cuda {

// Queues an increment by 1. Nothing else may write the counter. The host may read it at any time.
void increment_counter(std::uint32_t* counter, cudaStream_t stream);

}  // namespace ring::cuda
