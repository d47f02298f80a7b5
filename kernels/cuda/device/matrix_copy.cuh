#pragma once
// TMA copies of boxes of matrices from and to shared memory.

#include "kernels/cuda/device/tensor_copy.cuh"

namespace ring::cuda {

// Like tma_load() in tensor_copy.cuh, but for a matrix: c0 is the column, c1 the row.
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

// tma_store writes a box; tma_add adds it to global memory. Called by one thread. All threads that wrote `shared` must
// have called fence_proxy_async() before a barrier with this thread. bulk_commit() closes a group. Elements outside the
// matrix are not written.
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

// Waits until all groups of this thread except the `newest` ones have read shared memory.
template <int newest>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(newest) : "memory");
}

}  // namespace ring::cuda
