#pragma once
// Asynchronous copies from global to shared memory (cp.async), whose loads in flight cost no registers. A thread that
// only reads what it copied itself needs cp_async_wait but no barrier.

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

// Copies 16 bytes; writes zeros and does not read `from` if `inside` is false.
__device__ inline void cp_async16(void* shared, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async4(void* shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(from) : "memory");
}

// Closes a group of copies, which may be empty.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread except the `newest` ones.
template <int newest>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

}  // namespace ring::cuda
