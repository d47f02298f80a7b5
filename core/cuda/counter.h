#pragma once
// Progress counters in page-locked host memory, which a GPU increments and the host reads.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ring::cuda {

// Queues an increment by 1. Nothing else may write the counter; it may be read at any time.
void count_up(std::uint32_t* counter, cudaStream_t stream);

}  // namespace ring::cuda
