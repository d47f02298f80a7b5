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

StreamHandle::StreamHandle(int device) : device_(device) {
  const OnDevice on(device);
  RING_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// Work still queued runs to its end: the runtime releases the stream after it.
StreamHandle::~StreamHandle() { cudaStreamDestroy(stream_); }

}  // namespace ring::cuda
