#include "core/cuda/handles.h"

#include "core/cuda/check.h"

namespace ring::cuda {

OnDevice::OnDevice(int device) : device_(device) {
  RING_CUDA_CHECK(cudaGetDevice(&before_));
  if (before_ != device_) RING_CUDA_CHECK(cudaSetDevice(device_));
}

OnDevice::~OnDevice() {
  if (before_ != device_) cudaSetDevice(before_);
}

StreamHandle::StreamHandle(int device, bool high_priority) : device_(device) {
  const OnDevice on(device);
  int lowest = 0, highest = 0;
  RING_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  RING_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? highest : lowest));
}

// Work still queued runs to its end: the runtime releases the stream after it.
StreamHandle::~StreamHandle() { cudaStreamDestroy(stream_); }

}  // namespace ring::cuda
