#pragma once
// Copies from global to shared memory that run while the thread goes on (cp.async): loads in flight that cost no
// registers. A thread that reads only what it copied itself needs no barrier, just cp_async_wait.

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

// 16 bytes; zeros where `inside` is false, when `from` is not read.
__device__ inline void cp_async16(void* shared, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async4(void* shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(from) : "memory");
}

// Ends a group of copies, which may be empty.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread but the `newest`.
template <int newest>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

}  // namespace ring::cuda
