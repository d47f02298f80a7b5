#pragma once
// Warpgroup GEMMs (WGMMA, sm_90a) of e4m3 operands in shared memory with f32 accumulators in registers.

#include <cuda_fp8.h>

#include "kernels/cuda/device/wgmma.cuh"

namespace ring::cuda {

using E4m3 = __nv_fp8_e4m3;

// c = (keep ? c : 0) + a * b over 32 elements of K; both operands are K-major.
__device__ inline void wgmma_ss(RegTile<float, 64, 128>& c, MatrixDescriptor<E4m3, Major::k> a,
                                MatrixDescriptor<E4m3, Major::k> b, int keep) {
#define RING_SUMS4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define RING_SUMS16(i) RING_SUMS4(i), RING_SUMS4(i + 4), RING_SUMS4(i + 8), RING_SUMS4(i + 12)
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, keep, 1, 1;\n"
      "}\n"
      : RING_SUMS16(0), RING_SUMS16(16), RING_SUMS16(32), RING_SUMS16(48)
      : "l"(a.bits), "l"(b.bits), "r"(keep));
#undef RING_SUMS16
#undef RING_SUMS4
}

}  // namespace ring::cuda
