#include "core/cuda/handles.h"

#include <atomic>
#include <utility>

#include "core/cuda/check.h"

namespace ring::cuda {

namespace {

constexpr int kNone = -1;
std::atomic<int> first_device{kNone};  // device of the first OnDevice of this process
thread_local bool has_device = false;  // true if this thread has chosen a device

}  // namespace

void use_stream_device() {
  if (has_device || first_device == kNone) return;
  has_device = true;
  cudaSetDevice(first_device);  // on failure, the CUDA call that follows reports the error
}

OnDevice::OnDevice(int device) : device_(device) {
  int none = kNone;
  first_device.compare_exchange_strong(none, device);
  returns_ = std::exchange(has_device, true);
  RING_CUDA_CHECK(cudaGetDevice(&before_));
  if (before_ != device_) RING_CUDA_CHECK(cudaSetDevice(device_));
}

OnDevice::~OnDevice() {
  if (returns_ && before_ != device_) cudaSetDevice(before_);
}

StreamHandle::StreamHandle(int device, bool high_priority) : device_(device) {
  const OnDevice on(device);
  int lowest = 0, highest = 0;
  RING_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  RING_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? highest : lowest));
}

// Queued work still completes: the runtime releases the stream only afterwards.
StreamHandle::~StreamHandle() {
  use_stream_device();
  cudaStreamDestroy(stream_);
}

}  // namespace ring::cuda
