#pragma once
// Tensors in host memory that a device copies to and from. For GPUs they are page-locked, large ones in the background
// (core/page_locker.h): allocation does not block. A copy waits until its part is locked, and throws OutOfHostMemory if
// locking failed.

#include "core/page_locker.h"
#include "core/tensor.h"

namespace ring {

// Returns zeros [shape] on the host. Throws OutOfHostMemory.
Tensor host_tensor(const Shape&, DType, const Stream& device);

// Returns zeroed memory as host_tensor() allocates it. `details` is appended to the message of OutOfHostMemory.
std::shared_ptr<void> take_host_memory(std::size_t bytes, const Stream& device, const std::string& details = "");

// Queues a copy within host memory on `stream` and returns at once. CUDA's own copy within host memory would block the
// caller until all earlier work is done.
void copy_on_host(const Tensor& dst, const Tensor& src, const Stream& stream);

PageLockFacts page_lock_facts(Device);  // facts about host memory that is page-locked for the device

// Registered at load time by core/cuda if it is part of the build.
struct HostMemoryCalls {
  std::shared_ptr<void> (*take)(std::size_t bytes, Device);  // returns zeros; throws Error if the system has no more
  PageLockFacts (*facts)(Device);
};
bool register_host_memory(Backend, HostMemoryCalls);
using HostCopy = void (*)(void* dst, const void* src, std::size_t bytes, const Stream&);
bool register_host_copy(Backend, HostCopy);

}  // namespace ring
