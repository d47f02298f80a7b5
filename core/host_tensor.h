#pragma once
// Tensors in host memory that a device copies to and from: page-locked where it is a GPU, and what is large in the
// background (core/page_locker.h): taking it blocks nobody, copies wait until what they need is locked, and say
// OutOfHostMemory where it could not be.

#include "core/page_locker.h"
#include "core/tensor.h"

namespace ring {

// [shape] of zeros, on the host. Error: OutOfHostMemory.
Tensor host_tensor(const Shape&, DType, const Stream& device);

// Its memory alone, zeros. more: facts for the message of OutOfHostMemory, behind the bytes asked for.
std::shared_ptr<void> take_host_memory(std::size_t bytes, const Stream& device, const std::string& more = "");

// A copy within host memory that is made when `stream` gets to it, while the caller goes on. CUDA's own copy between
// two places of the host would block the caller until all work before it is done.
void copy_on_host(const Tensor& dst, const Tensor& src, const Stream& stream);

PageLockFacts page_lock_facts(Device);  // of all this memory of the process

// Filled at load time by core/cuda when it is part of the build.
struct HostMemoryCalls {
  std::shared_ptr<void> (*take)(std::size_t bytes, Device);  // zeros. Error: the system has no more
  PageLockFacts (*facts)(Device);
};
bool register_host_memory(Backend, HostMemoryCalls);
using HostCopy = void (*)(void* dst, const void* src, std::size_t bytes, const Stream&);
bool register_host_copy(Backend, HostCopy);

}  // namespace ring
