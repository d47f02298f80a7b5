#include "core/cuda/async_allocator.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cuda/check.h"

namespace ring::cuda {

AsyncAllocator::AsyncAllocator(std::shared_ptr<StreamHandle> stream) : stream_(std::move(stream)) {
  RING_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool_, stream_->device()));
  // By default the pool returns everything to the driver whenever the host waits: every step would pay for it.
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  RING_CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
}

void* AsyncAllocator::try_allocate(std::size_t bytes) const {
  void* p = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&p, bytes, pool_, stream_->get());
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  RING_CUDA_CHECK(error);
  return p;
}

void* AsyncAllocator::allocate(std::size_t bytes) {
  const OnDevice on(stream_->device());
  void* p = try_allocate(bytes);
  if (!p) {  // what was freed becomes whole again only after the work before it
    RING_CUDA_CHECK(cudaStreamSynchronize(stream_->get()));
    RING_CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
    p = try_allocate(bytes);
  }
  if (!p) fail_out_of_memory(bytes);
  std::lock_guard lock(mutex_);
  stats_.in_use += bytes;
  stats_.peak = std::max(stats_.peak, stats_.in_use);
  return p;
}

void AsyncAllocator::free(void* p, std::size_t bytes) {
  cudaFreeAsync(p, stream_->get());  // after a failed kernel it fails too, and that error was or will be reported
  std::lock_guard lock(mutex_);
  stats_.in_use -= bytes;
}

void AsyncAllocator::fail_out_of_memory(std::size_t bytes) const {
  std::size_t available = 0, total = 0;
  RING_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  fail("out of memory on cuda:", stream_->device(), ": ", bytes, " bytes asked for, ", stats().in_use, " in use, ",
       available, " of the device's ", total,
       " free. Lower train.micro_batch or model.context, or set train.recompute=block");
}

MemoryStats AsyncAllocator::stats() const {
  std::uint64_t reserved = 0;
  RING_CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  std::lock_guard lock(mutex_);
  MemoryStats s = stats_;
  s.reserved = reserved;
  return s;
}

void AsyncAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak = stats_.in_use;
}

}  // namespace ring::cuda
