#pragma once
// Boxes of tensors loaded into shared memory by the copy engine of sm_90, the TMA (PTX ISA, cp.async.bulk.tensor), and
// barriers between the warps that request them and those that use them.

#include <cuda.h>

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

// A barrier in shared memory (mbarrier). A phase is complete after `arrivals` arrivals and the bytes announced in it.
// Whoever waits names the parity of the phase (0 for the first); the phase before the first counts as complete. Threads
// sleep while they wait, for 10 ms at a time at most.
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
// By the thread that called init(), before a __syncthreads().
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A place in a ring of `stages` barriers, and the parity of its phase.
template <int stages>
struct PipelineState {
  int index = 0, phase = 0;
  __device__ void advance() {
    if (++index == stages) index = 0, phase ^= 1;
  }
};

// Loads the box at these coordinates, innermost first; its bytes arrive at the barrier. Beyond the tensor: zeros. By a
// converged warp, all lanes with the same arguments, of which one is elected: the compiler then needs no loop over
// lanes to bring them to the copy engine.
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

// What this thread read and wrote in shared memory comes before what the copy engine writes there later.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers 1 to 15 of a block, by number; each phase takes `threads` threads, those that wait and those that do not.
template <int threads>
__device__ inline void named_barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
template <int threads>
__device__ inline void named_barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

}  // namespace ring::cuda
