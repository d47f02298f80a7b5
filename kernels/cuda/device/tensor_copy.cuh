#pragma once
// TMA loads of boxes of tensors into shared memory on sm_90 (PTX ISA, cp.async.bulk.tensor), and mbarriers between
// producer and consumer warps.

#include <cuda.h>

#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

// An mbarrier in shared memory. A phase completes after `arrivals` arrivals and all bytes announced in it. wait() takes
// the parity of the phase (0 for the first); the phase before the first counts as complete. Waiting threads sleep, for
// at most 10 ms at a time.
struct Barrier {
  std::uint64_t state;

  __device__ std::uint32_t address() const { return shared_address(this); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
  __device__ void arrive_expect_tx(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address()),
        "r"(parity), "r"(10000000)
        : "memory");
  }
};

// Position in a ring of `stages` mbarriers, and the parity of its phase.
template <int stages>
struct PipelineState {
  int index = 0, phase = 0;
  __device__ void advance() {
    if (++index == stages) index = 0, phase ^= 1;
  }
};

// Prefetches a descriptor into the TMA's descriptor cache, so that the first load does not wait for it.
__device__ inline void prefetch_descriptor(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads the box at these coordinates, innermost first; its bytes arrive at the mbarrier. Elements outside the tensor
// become 0. Called by a converged warp, with the same arguments in all lanes, one of which is elected: the compiler
// then needs no loop over lanes to issue the TMA instruction.
__device__ inline void tma_load(std::uint32_t shared, const CUtensorMap& map, int c0, int c1, int c2, int c3,
                                Barrier& barrier) {
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "@elected cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];\n"
      "}\n" ::"r"(shared),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier.address())
      : "memory");
}

// Orders this thread's earlier accesses to shared memory before later ones of the TMA.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Named barriers 1 to 15 of a thread block. Each phase needs `threads` threads, both waiting and arriving ones.
template <int threads>
__device__ inline void named_barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
template <int threads>
__device__ inline void named_barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

}  // namespace ring::cuda
