#pragma once
// Owning handles of CUDA streams, and the current device of a thread.

#include <cuda_runtime_api.h>

namespace ring::cuda {

// Makes a device current for this thread until the end of the scope. The first OnDevice of a thread leaves its device
// current: a return to the first GPU would create a context there (see use_stream_device() in core/cuda/check.h).
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  bool returns_ = false;
  int before_ = 0, device_;
};

// A stream that does not synchronize with the default stream (cudaStreamNonBlocking).
class StreamHandle {
 public:
  // high_priority: its work runs before ready work of other streams. Throws Error if there is no such device.
  explicit StreamHandle(int device, bool high_priority = false);
  ~StreamHandle();
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace ring::cuda
