#pragma once
// Small copies between a GPU and page-locked host memory by a kernel. A GPU's copy engine handles the copies of all
// streams in one direction in order, so a kilobyte would wait for gigabytes that a different stream queued before
// (docs/measured/memory.md). A kernel does not wait.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ring::cuda {

inline constexpr std::size_t kSmallCopy = std::size_t{1} << 20;  // maximum bytes, which a kernel copies in 20 us

// Queues the copy and returns true if it is at most kSmallCopy bytes, with one side page-locked and the other on the
// current device. Returns false otherwise.
bool try_small_copy(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

}  // namespace ring::cuda
