#include "core/cuda/async_allocator.h"

#include <cstdint>
#include <limits>

#include "core/cuda/check.h"
#include "core/stream.h"

namespace ring::cuda {

AsyncAllocator::AsyncAllocator(std::shared_ptr<StreamHandle> stream, std::size_t max_cached)
    : CachingAllocator(max_cached), stream_(std::move(stream)) {
  RING_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool_, stream_->device()));
  // By default the pool returns all unused memory to the driver at each synchronization, which would slow every step.
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  RING_CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
}

AsyncAllocator::~AsyncAllocator() { release_cached(); }

void* AsyncAllocator::take(std::size_t bytes) {
  const OnDevice on(stream_->device());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  RING_CUDA_CHECK(cudaStreamIsCapturing(stream_->get(), &capture));
  // A block allocated during capture would belong to the graph, but the cache would hand it out again afterwards.
  RING_CHECK(capture == cudaStreamCaptureStatusNone, bytes,
             " bytes were requested during graph capture: captured work needs all of its memory allocated beforehand");
  void* p = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&p, bytes, pool_, stream_->get());
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  RING_CUDA_CHECK(error);
  return p;
}

void AsyncAllocator::give_back(void* p, std::size_t) {
  use_stream_device();
  cudaFreeAsync(p, stream_->get());  // may return the error of a failed kernel, which another call reports
}

// Waits for the stream: the pool merges a freed block only when the work that was queued before the free has ended.
void AsyncAllocator::wait_until_freed() {
  const OnDevice on(stream_->device());
  count_host_wait();
  RING_CUDA_CHECK(cudaStreamSynchronize(stream_->get()));
  RING_CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
}

void AsyncAllocator::fail_out_of_memory(std::size_t bytes, const MemoryStats& stats) const {
  const OnDevice on(stream_->device());
  std::size_t available = 0, total = 0;
  RING_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  throw OutOfMemory(str("out of memory on cuda:", stream_->device(), ": ", bytes, " bytes requested, ", stats.in_use,
                        " in use, ", reserved(), " reserved, ", available, " of the device's ", total, " free"));
}

std::size_t AsyncAllocator::reserved() const {
  std::uint64_t bytes = 0;
  RING_CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes));
  return bytes;
}

MemoryStats AsyncAllocator::stats() const {
  MemoryStats s = CachingAllocator::stats();
  s.reserved = reserved();
  return s;
}

}  // namespace ring::cuda
