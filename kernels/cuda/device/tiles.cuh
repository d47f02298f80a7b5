#pragma once
// Tile types of the warpgroup kernels, after ThunderKittens (Spector et al. 2024): RegTile in registers, SmemTile in
// shared memory. A tile's type fixes its element type, shape and layout, so that a call with a wrong tile does not
// compile.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/shared_address.cuh"

namespace ring::cuda {

using Bf16 = __nv_bfloat16;

// A tile of 64 rows in the registers of a warpgroup. Warp w has the 16 rows from 16 w on, in the fragments of
// mma.m16n8k16 (mma.cuh): f32 accumulators as fragments of C, bf16 operands as fragments of A.
template <class T, int rows, int columns>
struct RegTile;
// Element i of a lane is in column i / 4 * 8 + lane % 4 * 2 + i % 2 and row lane / 4 (+ 8 if i / 2 is odd) of the warp.
template <int columns>
struct RegTile<float, 64, columns> {
  static_assert(columns % 8 == 0);
  static constexpr int kElements = columns / 2;  // per lane
  float data[kElements];
  __device__ float& operator[](int i) { return data[i]; }
  __device__ float operator[](int i) const { return data[i]; }
};
template <int columns>
struct RegTile<Bf16, 64, columns> {
  static_assert(columns % 16 == 0);
  static constexpr int kSteps = columns / 16;  // fragments of 16 columns, four registers each
  std::uint32_t data[kSteps][4];
};

// Prevents the compiler from moving accesses to these registers across this point.
template <int columns>
__device__ inline void fence_operand(RegTile<float, 64, columns>& r) {
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) asm volatile("" : "+f"(r.data[i])::"memory");
}
template <int columns>
__device__ inline void fence_operand(RegTile<Bf16, 64, columns>& r) {
#pragma unroll
  for (int i = 0; i < columns / 4; ++i) asm volatile("" : "+r"(r.data[i / 4][i % 4])::"memory");
}
template <int columns>
__device__ inline void clear(RegTile<float, 64, columns>& r) {
#pragma unroll
  for (float& x : r.data) x = 0.0f;
}
// Writes zeros. The compiler cannot hoist these writes above this point.
template <int columns>
__device__ inline void clear(RegTile<Bf16, 64, columns>& r) {
#pragma unroll
  for (int i = 0; i < columns / 4; ++i) asm volatile("mov.b32 %0, 0;" : "=r"(r.data[i / 4][i % 4])::"memory");
}
// Multiplies each row by a factor; factor[0] and factor[1] are those of a lane's two rows.
template <int columns>
__device__ inline void mul_row(RegTile<float, 64, columns>& r, const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) r[i] *= factor[i / 2 % 2];
}
// Returns block `i` of a tile; each block is `columns` columns wide.
template <int columns, class T, int all>
__device__ inline RegTile<T, 64, columns>& column_block(RegTile<T, 64, all>& r, int i) {
  static_assert(all % columns == 0);
  constexpr int kSize = sizeof(r.data) / sizeof(r.data[0]) / (all / columns);
  return reinterpret_cast<RegTile<T, 64, columns>&>(r.data[i * kSize]);
}

// Layout of a tile in shared memory. b128: panels, one after another, with 128 bytes of each row; the 16-byte chunks of
// a row are permuted by TMA's 128-byte swizzle. none: whole rows, one after another, as TMA copies them.
enum class Swizzle { none, b128 };

// Address of a tile, or of some rows of a tile. Panels of the tile have panel_rows rows.
template <class T, int rows, int columns, Swizzle swizzle, int panel_rows = rows>
struct SmemView {
  static constexpr int kPanelBytes = panel_rows * 128;
  std::uint32_t address;
  // Returns the byte offset of a 16-byte chunk of row `first` + `row`. first: a multiple of 8, because the swizzle
  // repeats after 8 rows.
  static __device__ int offset(int first, int row, int chunk) {
    return chunk / 8 * kPanelBytes + (first + row) * 128 + (chunk % 8 ^ row % 8) * 16;
  }
  // Returns the address of a row's 16-byte chunk in the first panel.
  __device__ std::uint32_t chunk(int row, int chunk) const { return address + row * 128 + (chunk ^ row % 8) * 16; }
};

// A tile in shared memory. Tiles with a swizzle must be aligned to 1024 bytes.
template <class T, int rows, int columns, Swizzle swizzle = Swizzle::b128>
struct SmemTile {
  static constexpr int kBytes = rows * columns * static_cast<int>(sizeof(T));
  static_assert(swizzle == Swizzle::none || (kBytes % 1024 == 0 && columns * sizeof(T) % 128 == 0));
  using View = SmemView<T, rows, columns, swizzle>;
  using Unit = std::conditional_t<swizzle == Swizzle::none, T, unsigned char>;
  Unit data[kBytes / sizeof(Unit)];
  __device__ View view() const { return {shared_address(data)}; }
  __device__ T* row(int i) {
    static_assert(swizzle == Swizzle::none);
    return data + i * columns;
  }
};

// Returns the tile of a pipeline stage.
template <class Tile, int stages>
__device__ inline typename Tile::View stage_view(const Tile (&ring)[stages], int stage) {
  return {shared_address(ring) + stage * Tile::kBytes};
}

// Returns rows [i * rows, (i + 1) * rows) of a tile.
template <int rows, class T, int all, int columns, int panel_rows>
__device__ inline SmemView<T, rows, columns, Swizzle::b128, panel_rows> row_block(
    SmemView<T, all, columns, Swizzle::b128, panel_rows> tile, int i) {
  static_assert(all % rows == 0 && rows % 8 == 0);
  return {tile.address + rows * 128 * i};
}
// Returns panel `i` of a tile: 128 bytes of each row.
template <class T, int rows, int columns, int panel_rows>
__device__ inline SmemView<T, rows, 128 / sizeof(T), Swizzle::b128, panel_rows> panel(
    SmemView<T, rows, columns, Swizzle::b128, panel_rows> tile, int i) {
  return {tile.address + i * tile.kPanelBytes};
}

}  // namespace ring::cuda
