#pragma once
// Warp-level tensor-core GEMMs (mma.sync) of bf16 with f32 accumulators, and loads of their operands.
//
// Fragments of mma.m16n8k16, with g = lane / 4 and t = lane % 4. C: columns 2t and 2t + 1 of row g, then of row g + 8.
// A: registers 0 to 3 hold two neighbouring elements each, at (g, 2t), (g + 8, 2t), (g, 2t + 8) and (g + 8, 2t + 8).
// B: registers 0 and 1 hold two elements with neighbouring k each, at (2t, column g) and (2t + 8, column g).

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"

namespace ring::cuda {

// Load four 8 x 8 matrices of bf16. Lanes 8i .. 8i + 7 give the addresses of the rows of matrix i.
__device__ inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void ldmatrix_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// c += a * b
__device__ inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Packs two numbers as bf16. `first` is in the low half, which has the smaller address in memory.
__device__ inline std::uint32_t pack_bf16(float first, float second) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}

// Like cp_async16, for 4 bytes.
__device__ inline void cp_async4(void* shared, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}

// 2^x with a relative error of 2^-22; results below 2^-126 become 0.
__device__ inline float fast_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace ring::cuda
