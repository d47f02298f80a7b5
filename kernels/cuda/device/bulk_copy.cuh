#pragma once
// Bulk copies from global to shared memory by the TMA of sm_90 and later (PTX ISA, cp.async.bulk), and the mbarriers
// that they complete. On older devices kBulkCopy is false, and kernels must use ordinary loads.

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kBulkCopy = false;
__device__ inline void init_barrier(std::uint64_t*) {}
__device__ inline void fence_barrier_init() {}
__device__ inline void bulk_copy(void*, const void*, std::uint32_t, std::uint64_t*) {}
__device__ inline void wait_barrier(std::uint64_t*, std::uint32_t) {}
#else
inline constexpr bool kBulkCopy = true;

// Initializes an mbarrier for one arrival per phase, which bulk_copy() makes. The phase completes once the bytes
// announced by bulk_copy() have arrived.
__device__ inline void init_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// Makes initialized mbarriers visible to the TMA; other threads see them after __syncthreads().
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies bytes from global to shared memory. Called by one thread. Addresses and bytes must be multiples of 16.
__device__ inline void bulk_copy(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Waits until the phase of this parity (0 first) is complete; then the bytes can be read.
__device__ inline void wait_barrier(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
#endif

}  // namespace ring::cuda
