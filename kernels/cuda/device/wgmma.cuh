#pragma once
// Warpgroup GEMMs (WGMMA, sm_90a; PTX ISA, asynchronous warpgroup matrix instructions): operands of bf16, B always in
// shared memory, f32 accumulators in registers. mm_ABt(), mma_AB() and mm_AtB() are whole products of tiles.

#include "kernels/cuda/device/tiles.cuh"

namespace ring::cuda {

// Orders earlier register accesses before the GEMMs that are issued next.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups except the `newest` ones. Accumulators may only be read after fence_operand().
template <int newest>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
}

__device__ inline std::uint64_t join_words(std::uint32_t low, std::uint32_t high) {
  std::uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}
// Dimension that is contiguous in the rows of an operand's tile: k (the contraction dimension), or m or n.
enum class Major { k, mn };
// Descriptor of a tile in shared memory.
template <class T, Major major>
struct MatrixDescriptor {
  std::uint64_t bits;
};
// Returns the descriptor of the K-major tile that begins `bytes` (a multiple of 16) after the given tile, whose rows
// are rows of A or columns of the result. High word: a stride of 1024 bytes per 8 rows, and bit 30 for the 128-byte
// swizzle. Descriptors of different tiles differ only in the low word, so one addition turns one into another.
template <class T, int rows, int columns, int panel_rows>
__device__ inline MatrixDescriptor<T, Major::k> desc_k_major(SmemView<T, rows, columns, Swizzle::b128, panel_rows> tile,
                                                             int bytes) {
  return {join_words((tile.address >> 4) + static_cast<std::uint32_t>(bytes) / 16, 1024 >> 4 | 1u << 30)};
}
// Same for an MN-major tile: its rows run along the contraction dimension, and its panels, whose distance is in bits 16
// to 29, hold the columns of the result one after another.
template <class T, int rows, int columns, int panel_rows>
__device__ inline MatrixDescriptor<T, Major::mn> desc_mn_major(
    SmemView<T, rows, columns, Swizzle::b128, panel_rows> tile, int bytes) {
  const std::uint32_t first = tile.address >> 4 | static_cast<std::uint32_t>(tile.kPanelBytes) >> 4 << 16;
  return {join_words(first + static_cast<std::uint32_t>(bytes) / 16, 1024 >> 4 | 1u << 30)};
}

#define RING_SUMS4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define RING_SUMS16(c, i) RING_SUMS4(c, i), RING_SUMS4(c, i + 4), RING_SUMS4(c, i + 8), RING_SUMS4(c, i + 12)

// c = (keep ? c : 0) + a * b over 16 elements of K, both operands in shared memory (SS).
template <Major a_major, Major b_major>
__device__ inline void wgmma_ss(RegTile<float, 64, 64>& c, MatrixDescriptor<Bf16, a_major> a,
                                MatrixDescriptor<Bf16, b_major> b, int keep) {
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
      : "l"(a.bits), "l"(b.bits), "r"(keep), "n"(a_major == Major::mn ? 1 : 0), "n"(b_major == Major::mn ? 1 : 0));
}
__device__ inline void wgmma_ss(RegTile<float, 64, 128>& c, MatrixDescriptor<Bf16, Major::k> a,
                                MatrixDescriptor<Bf16, Major::k> b, int keep) {
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
      : "l"(a.bits), "l"(b.bits), "r"(keep));
}

// Same with A in registers (RS), as a fragment of mma.m16n8k16.
template <Major b_major>
__device__ inline void wgmma_rs(RegTile<float, 64, 64>& c, const std::uint32_t (&a)[4],
                                MatrixDescriptor<Bf16, b_major> b, int keep) {
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
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(keep), "n"(b_major == Major::mn ? 1 : 0));
}
template <Major b_major>
__device__ inline void wgmma_rs(RegTile<float, 64, 128>& c, const std::uint32_t (&a)[4],
                                MatrixDescriptor<Bf16, b_major> b, int keep) {
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
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(keep), "n"(b_major == Major::mn ? 1 : 0));
}
template <Major b_major>
__device__ inline void wgmma_rs(RegTile<float, 64, 256>& c, const std::uint32_t (&a)[4],
                                MatrixDescriptor<Bf16, b_major> b, int keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, keep, 1, 1, %134;\n"
      "}\n"
      : RING_SUMS16(c, 0), RING_SUMS16(c, 16), RING_SUMS16(c, 32), RING_SUMS16(c, 48), RING_SUMS16(c, 64),
        RING_SUMS16(c, 80), RING_SUMS16(c, 96), RING_SUMS16(c, 112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(keep), "n"(b_major == Major::mn ? 1 : 0));
}

#undef RING_SUMS16
#undef RING_SUMS4

// c = a b^T, both operands in shared memory.
template <class T, int n, int k, int a_rows, int b_rows>
__device__ inline void mm_ABt(RegTile<float, 64, n>& c, SmemView<T, 64, k, Swizzle::b128, a_rows> a,
                              SmemView<T, n, k, Swizzle::b128, b_rows> b) {
  constexpr int kStep = 32 / sizeof(T);  // elements of K per instruction: 32 bytes
#pragma unroll
  for (int i = 0; i < k / kStep; ++i)
    wgmma_ss(c, desc_k_major(a, i / 4 * a.kPanelBytes + i % 4 * 32),
             desc_k_major(b, i / 4 * b.kPanelBytes + i % 4 * 32), i > 0);
}
// c = a b^T with a in registers.
template <int n, int k, int b_rows>
__device__ inline void mm_ABt(RegTile<float, 64, n>& c, const RegTile<Bf16, 64, k>& a,
                              SmemView<Bf16, n, k, Swizzle::b128, b_rows> b) {
#pragma unroll
  for (int i = 0; i < k / 16; ++i) wgmma_rs(c, a.data[i], desc_k_major(b, i / 4 * b.kPanelBytes + i % 4 * 32), i > 0);
}
// c += a b with a in registers.
template <int n, int k, int b_rows>
__device__ inline void mma_AB(RegTile<float, 64, n>& c, const RegTile<Bf16, 64, k>& a,
                              SmemView<Bf16, k, n, Swizzle::b128, b_rows> b) {
#pragma unroll
  for (int i = 0; i < k / 16; ++i) wgmma_rs(c, a.data[i], desc_mn_major(b, i * 16 * 128), 1);
}
// c = (keep ? c : 0) + a^T b, both operands in shared memory.
template <int n, int k, int a_rows, int b_rows>
__device__ inline void mm_AtB(RegTile<float, 64, n>& c, SmemView<Bf16, k, 64, Swizzle::b128, a_rows> a,
                              SmemView<Bf16, k, n, Swizzle::b128, b_rows> b, int keep = 0) {
#pragma unroll
  for (int i = 0; i < k / 16; ++i)
    wgmma_ss(c, desc_mn_major(a, i * 16 * 128), desc_mn_major(b, i * 16 * 128), i > 0 || keep);
}

// Stores four 8 x 8 matrices of bf16 to shared memory. Lanes 8i .. 8i + 7 give the addresses of the rows of matrix i.
__device__ inline void stmatrix(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Sets the number of registers per thread from here on. All threads of a warpgroup must call it.
template <int registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace ring::cuda
