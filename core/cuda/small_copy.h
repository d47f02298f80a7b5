#pragma once
// Copies of few bytes between a GPU and page-locked host memory, by a kernel. A GPU's copy engines work off what all
// streams queue for one direction in order: a kilobyte waits there for the gigabytes that another stream queued before
// (docs/measured/memory.md). A kernel does not.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace ring::cuda {

inline constexpr std::size_t kSmallCopy = std::size_t{1} << 20;  // a kernel takes 20 us for that

// Whether it queued the copy: of at most kSmallCopy bytes, one side page-locked, the other the current device's.
bool small_copy(void* dst, const void* src, std::size_t bytes, cudaStream_t stream);

}  // namespace ring::cuda
