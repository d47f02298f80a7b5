#pragma once
// Boxes of matrices loaded into shared memory by the TMA.

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

}  // namespace ring::cuda
