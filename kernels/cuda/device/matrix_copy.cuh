#pragma once
// Boxes of matrices that the TMA copies from and to shared memory.

#include "kernels/cuda/device/tensor_copy.cuh"

namespace ring::cuda {

// tma_load() of a matrix: c0 counts within rows, c1 the rows.
__device__ inline void tma_load(std::uint32_t shared, const CUtensorMap& map, int c0, int c1, Barrier& barrier) {
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "@elected cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];\n"
      "}\n" ::"r"(shared),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier.address())
      : "memory");
}

// Writes a box, or adds it to what is there. By one thread, after the writers of `shared` have called
// fence_proxy_async() and met it at a barrier; bulk_commit() ends a group of them. What lies beyond the matrix is not
// written.
__device__ inline void tma_store(const CUtensorMap& map, int c0, int c1, std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(c0),
               "r"(c1), "r"(shared)
               : "memory");
}
__device__ inline void tma_add(const CUtensorMap& map, int c0, int c1, std::uint32_t shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(shared)
      : "memory");
}

// Waits until all groups of this thread but the `newest` have read shared memory.
template <int newest>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(newest) : "memory");
}

}  // namespace ring::cuda
