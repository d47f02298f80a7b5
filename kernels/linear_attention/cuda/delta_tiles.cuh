#pragma once
// Tiles of the gated delta rule on tensor cores (bf16 operands, f32 accumulators), for heads of 64 and 128 channels.
//
// Tiles in shared memory are row-major with rows padded by 16 bytes, so that ldmatrix has no bank conflicts. A warp's
// accumulators c[n][4] of 8 columns each become the left operand of the next product without any exchange, because two
// of them have the layout of a fragment of A (mma.cuh).
//
// The recurrence works on transposed tiles: a warp owns 16 channels of values, the rows of its accumulators. It keeps
// its part of S^T in registers, and products with S^T need no exchange between warps.

#include "kernels/attention/cuda/documents.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/linear_attention/cuda/delta_chunk.cuh"

namespace ring::cuda {

using Bf16 = __nv_bfloat16;
constexpr int kRows = kMaxChunk;  // of a chunk
constexpr int kPadding = 8;       // elements at the end of a row in shared memory
constexpr int kSquare = kRows * (kRows + kPadding);

// Numbers of each row of a chunk and head, [kRows] each. With G the running sum of g, and 1 / |q| and 1 / |k|:
// exp(G) / |k|, exp(G_last - G) / |k|, scale exp(G) / |q|, beta, exp(G_last), G, 1 / |k| and 1 / |q|. Rows past the end
// have 0 except in exp(G_last) and G.
enum class DeltaNumber : std::uint8_t { grow_k, rest_k, grow_q, rate, last, running, k_rnorm, q_rnorm };
constexpr int kNumbers = 8, kRecurrenceNumbers = 5;

struct MmaDocument {
  std::int64_t first;
  int count, index;  // rows; which document of the call it is
};

// Temporary memory. A chunk is numbered from the first document of a launch; item = chunk * heads + head.
struct DeltaScratch {
  float* numbers;  // [items, kNumbers, kRows]
  Bf16 *t, *p;     // [items, kRows, kRows]: (I + A)^-1, and P times scale
  Bf16 *s, *ds;    // [items, Dv, Dk]: transposed states before, and gradients of states after a chunk
  Bf16 *u, *dr;    // [items, Dv, kRows]: U and the gradient of R, transposed
};

// Rows [first, first + length) of a document: a chunk.
struct ChunkRows {
  std::int64_t first;
  int length;
};
__device__ inline ChunkRows chunk_rows(const MmaDocument& d, int chunk) {
  return {d.first + chunk * kRows, min(kRows, d.count - chunk * kRows)};
}

// Address of the row that this lane gives to ldmatrix. Matrices 0 to 3 are, within 16 x 16 elements at (row, column):
// `rows_first`: (0,0) (8,0) (0,8) (8,8), else (0,0) (0,8) (8,0) (8,8).
template <bool rows_first>
__device__ inline std::uint32_t matrix_address(const Bf16* tile, int stride, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, matrix = lane / 8;
  const int down = rows_first ? matrix % 2 : matrix / 2, right = rows_first ? matrix / 2 : matrix % 2;
  return shared_address(tile + (row + down * 8 + lane % 8) * stride + column + right * 8);
}

using Fragment = std::uint32_t[4];

// Load a fragment of A, 16 x 16 elements from (m, k) on, of a tile with rows m, or of one with rows k.
__device__ inline void load_a(Fragment& r, const Bf16* tile, int stride, int m, int k) {
  ldmatrix(r, matrix_address<true>(tile, stride, m, k));
}
__device__ inline void load_a_transposed(Fragment& r, const Bf16* tile, int stride, int m, int k) {
  ldmatrix_trans(r, matrix_address<false>(tile, stride, k, m));
}
// Load fragments of B for 16 columns from n on (registers 0 and 1, then 2 and 3), of a tile with rows n, or of one with
// rows k.
__device__ inline void load_b(Fragment& r, const Bf16* tile, int stride, int n, int k) {
  ldmatrix(r, matrix_address<false>(tile, stride, n, k));
}
__device__ inline void load_b_transposed(Fragment& r, const Bf16* tile, int stride, int n, int k) {
  ldmatrix_trans(r, matrix_address<true>(tile, stride, k, n));
}

// Store four 8 x 8 matrices of bf16, as ldmatrix and ldmatrix_trans load them.
__device__ inline void stmatrix(std::uint32_t address, const Fragment& r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ inline void stmatrix_trans(std::uint32_t address, const Fragment& r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Requests the 128 bytes around an address from DRAM to L2.
__device__ inline void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Store a fragment of A where load_a() or load_a_transposed() would find it.
__device__ inline void store_a(const Fragment& r, Bf16* tile, int stride, int m, int k) {
  stmatrix(matrix_address<true>(tile, stride, m, k), r);
}
__device__ inline void store_a_transposed(const Fragment& r, Bf16* tile, int stride, int m, int k) {
  stmatrix_trans(matrix_address<false>(tile, stride, k, m), r);
}

// c[2], 16 rows and 16 columns, += a * b
__device__ inline void mma_pair(float (*c)[4], const Fragment& a, const Fragment& b) {
  mma_m16n8k16(c[0], a, b[0], b[1]);
  mma_m16n8k16(c[1], a, b[2], b[3]);
}

// The part of a fragment of A that has the positions of elements 2 half and 2 half + 1 of accumulator n of a pair.
__device__ inline std::uint32_t part_of(const Fragment& a, int n, int half) { return a[2 * n + half]; }

// Rounds two accumulators of 8 columns to a fragment of A.
__device__ inline void to_a(Fragment& a, const float (*c)[4]) {
  a[0] = pack_bf16(c[0][0], c[0][1]), a[1] = pack_bf16(c[0][2], c[0][3]);
  a[2] = pack_bf16(c[1][0], c[1][1]), a[3] = pack_bf16(c[1][2], c[1][3]);
}
__device__ inline float low_half(std::uint32_t two) { return __uint_as_float(two << 16); }
__device__ inline float high_half(std::uint32_t two) { return __uint_as_float(two & 0xffff0000u); }

// The numbers of columns 2 (lane % 4) and the next one, from column `first` on.
__device__ inline float2 column_numbers(const float* numbers, int first) {
  return *reinterpret_cast<const float2*>(numbers + first + static_cast<int>(threadIdx.x) % 4 * 2);
}
__device__ inline const float* number_row(const float* numbers, DeltaNumber which) {
  return numbers + static_cast<int>(which) * kRows;
}

// Requests copies of `rows` rows of `columns` elements; rows from `valid` on become zeros. All `threads` threads call
// it.
template <int threads, int rows, int columns>
__device__ inline void copy_rows(Bf16* to, const Bf16* from, std::int64_t stride, int valid) {
  constexpr int packs = columns / 8;
#pragma unroll
  for (int i = 0; i < (rows * packs + threads - 1) / threads; ++i) {
    const int at = i * threads + static_cast<int>(threadIdx.x), row = at / packs, pack = at % packs;
    if (rows * packs % threads != 0 && at >= rows * packs) break;
    const bool inside = row < valid;
    cp_async16(to + row * (columns + kPadding) + pack * 8, from + (inside ? row * stride + pack * 8 : 0), inside);
  }
}

// Requests copies of `count` floats, a multiple of 4.
template <int threads, int count>
__device__ inline void copy_numbers(float* to, const float* from) {
  for (int i = static_cast<int>(threadIdx.x); i < count / 4; i += threads) cp_async16(to + 4 * i, from + 4 * i, true);
}

}  // namespace ring::cuda
