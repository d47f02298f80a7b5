#pragma once
// Bulk stores and reductions from shared to global memory by the TMA of sm_90 (PTX ISA, cp.async.bulk and
// cp.reduce.async.bulk), and counters in global memory that order them between thread blocks.

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

// Copy (bulk_store) or add (bulk_add) floats to global memory. Called by one thread. All threads that wrote `shared`
// must have called fence_proxy_async() before a barrier with this thread. Addresses and bytes must be multiples of 16.
__device__ inline void bulk_store(float* global, const float* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_add(float* global, const float* shared, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait until this thread's copies have read shared memory, and until they have written global memory.
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_wait_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Returns the counter's value with acquire semantics: everything that its writer did before is visible
// to what this thread does next.
__device__ inline unsigned turn_of(const unsigned* counter) {
  unsigned found;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
  return found;
}
// Waits until a counter has this value. This thread's next bulk copies then come after the writer's bulk copies.
__device__ inline void await_turn(const unsigned* counter, unsigned value) {
  while (turn_of(counter) != value) {
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Like await_turn, for any value except 0.
__device__ inline void await_any_turn(const unsigned* counter) {
  while (turn_of(counter) == 0) {
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Sets the counter (release). Call after bulk_wait_written().
__device__ inline void give_turn(unsigned* counter, unsigned value) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

}  // namespace ring::cuda
