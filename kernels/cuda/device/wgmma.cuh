#pragma once
// Warpgroup GEMMs (WGMMA, sm_90a): bf16 operands, B always in shared memory, f32 accumulators in registers. PTX ISA,
// asynchronous warpgroup matrix instructions.
//
// Accumulators have 64 rows and N columns: warp w of the warpgroup has the rows from 16 w on, in which each lane has
// the fragments of mma.m16n8k16 (mma.cuh), four elements per 8 columns. Tiles in shared memory are panels of 64 columns
// (128 bytes a row, with TMA's 128-byte swizzle of 16-byte chunks), aligned to 1024 bytes.

#include <cstdint>

namespace ring::cuda {

// Orders earlier register accesses before the GEMMs that are issued next.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups except the `newest` ones. Accumulators may only be read after fence_operand().
template <int newest>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
}
// Prevents the compiler from moving accesses to these registers across this point.
template <int n>
__device__ inline void fence_operand(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int n>
__device__ inline void fence_operand(std::uint32_t (&r)[n][4]) {
#pragma unroll
  for (int i = 0; i < 4 * n; ++i) asm volatile("" : "+r"(r[i / 4][i % 4])::"memory");
}
// Writes zeros. The compiler cannot hoist these writes above this point.
template <int n>
__device__ inline void clear(std::uint32_t (&r)[n][4]) {
#pragma unroll
  for (int i = 0; i < 4 * n; ++i) asm volatile("mov.b32 %0, 0;" : "=r"(r[i / 4][i % 4])::"memory");
}

// Descriptor of a tile in shared memory. Only the low word differs between tiles, so a tile `bytes` further on, a
// multiple of 16, is one addition away.
struct MatrixDescriptor {
  std::uint32_t low, high;
  __device__ MatrixDescriptor after(int bytes) const { return {low + static_cast<std::uint32_t>(bytes) / 16, high}; }
  __device__ operator std::uint64_t() const {
    std::uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
  }
};
// Dimension that is contiguous in a row of an operand's tile: K, the contraction dimension, or M or N.
enum class Major { k, mn };
// Descriptor of a K-major tile: its rows are rows of A or columns of the result.
__device__ inline MatrixDescriptor desc_k_major(std::uint32_t address) { return {address >> 4, 1024 >> 4 | 1u << 30}; }
// Descriptor of an MN-major tile: its rows are the contraction dimension, and columns of the result continue from panel
// to panel.
__device__ inline MatrixDescriptor desc_mn_major(std::uint32_t address, std::uint32_t panel_bytes) {
  return {address >> 4 | panel_bytes >> 4 << 16, 1024 >> 4 | 1u << 30};
}

#define RING_SUMS4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define RING_SUMS16(c, i) RING_SUMS4(c, i), RING_SUMS4(c, i + 4), RING_SUMS4(c, i + 8), RING_SUMS4(c, i + 12)

// c = (keep ? c : 0) + a * b over 16 elements of K, both operands in shared memory (SS).
template <Major a_major = Major::k, Major b_major = Major::k>
__device__ inline void wgmma_ss(float (&c)[32], std::uint64_t a, std::uint64_t b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, keep, 1, 1, %35, %36;\n"
      "}\n"
      : RING_SUMS16(c, 0), RING_SUMS16(c, 16)
      : "l"(a), "l"(b), "r"(keep), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
}
__device__ inline void wgmma_ss(float (&c)[64], std::uint64_t a, std::uint64_t b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, keep, 1, 1, 0, 0;\n"
      "}\n"
      : RING_SUMS16(c, 0), RING_SUMS16(c, 16), RING_SUMS16(c, 32), RING_SUMS16(c, 48)
      : "l"(a), "l"(b), "r"(keep));
}

// Same with A in registers (RS), as fragments of mma.m16n8k16. b comes from desc_mn_major() or desc_k_major(), as
// b_major says.
template <Major b_major = Major::mn>
__device__ inline void wgmma_rs(float (&c)[32], const std::uint32_t (&a)[4], std::uint64_t b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, keep, 1, 1, %38;\n"
      "}\n"
      : RING_SUMS16(c, 0), RING_SUMS16(c, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(b_major == Major::mn ? 1 : 0));
}
template <Major b_major = Major::mn>
__device__ inline void wgmma_rs(float (&c)[64], const std::uint32_t (&a)[4], std::uint64_t b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, keep, 1, 1, %70;\n"
      "}\n"
      : RING_SUMS16(c, 0), RING_SUMS16(c, 16), RING_SUMS16(c, 32), RING_SUMS16(c, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(b_major == Major::mn ? 1 : 0));
}

#undef RING_SUMS16
#undef RING_SUMS4

// Stores four 8 x 8 matrices of bf16 to shared memory. Lanes 8i .. 8i + 7 give the addresses of the rows of matrix i.
__device__ inline void stmatrix(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Sets the registers per thread from here on. Must be called by all threads of a warpgroup.
template <int registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace ring::cuda
