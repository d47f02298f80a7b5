#pragma once
// Counts in page-locked host memory that a GPU adds to: how far it has come, for those who look on from the host.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ring::cuda {

// Queues the addition of 1. Nothing else writes the counter, which may be read at any time.
void count_up(std::uint32_t* counter, cudaStream_t stream);

}  // namespace ring::cuda
