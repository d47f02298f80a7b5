#pragma once
// A thread block quantizes a tile of 128 x 128, with a scale per 128 elements of a row, and, in the transpose, of a
// column.

#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr int kSide = static_cast<int>(kFp8Block), kWarps = kBlock / kWarp;
constexpr int kEach = 8;                // a thread has kEach x kEach elements of a tile
constexpr int kAcross = kSide / kEach;  // threads along each side
static_assert(kAcross * kAcross == kBlock);

// The matrix that is quantized, and where it goes.
struct QuantizeParams {
  std::int64_t rows, columns;
  unsigned tiles_across;
  bool packed;  // whether rows of the sources are made of aligned packs
  Fp8Rows out, transposed;
};

struct TileMemory {
  float max[kWarps][kSide];  // per column of a warp's rows
  float factors[kSide];      // by column
  uint2 transposed[kSide][kAcross];
};

// A thread's elements of a tile of 128 x 128: rows 8 `down` + 0 to 7, columns 8 `across` + 0 to 7.
template <class T>
struct ThreadTile {
  const QuantizeParams& p;
  std::int64_t block_row, block_column;  // in blocks of 128
  int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  Pack<T, kEach> rows[kEach] = {};

  // The tile of the thread block. Runs from the last rows to the first: the last are still in L2 from the previous
  // kernel, and the first will be when the next kernel reads the results.
  __device__ explicit ThreadTile(const QuantizeParams& p) : p(p) {
    const unsigned index = gridDim.x - 1 - blockIdx.x;
    block_row = index / p.tiles_across, block_column = index % p.tiles_across;
  }
  __device__ std::int64_t row() const { return block_row * kSide + down * kEach; }
  __device__ std::int64_t column() const { return block_column * kSide + across * kEach; }

  // Elements outside the matrix are 0.
  template <class Source>
  __device__ void load(const Source& source) {
    if (p.packed && (block_row + 1) * kSide <= p.rows && (block_column + 1) * kSide <= p.columns) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) rows[r] = source.pack(row() + r, column());
      return;
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      Floats<kEach> f = {};
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (row() + r < p.rows && column() + c < p.columns) f.v[c] = to_float(source.at(row() + r, column() + c));
      rows[r] = pack<T>(f);
    }
  }

  // Stops the compiler from keeping the elements unpacked, which would take twice the registers.
  __device__ void keep_packed() {
#pragma unroll
    for (Pack<T, kEach>& row : rows)
#pragma unroll
      for (std::uint32_t& bits : row.bits) asm volatile("" : "+r"(bits));
  }

  // Writes the thread's part of row r.
  __device__ void write_row(int r, float factor) const {
    const Floats<kEach> f = unpack(rows[r]);
    if (row() + r >= p.rows) return;
    std::uint8_t* to = p.out.values + (row() + r) * p.out.value_stride + column();
    const uint2 codes = {pack_e4m3(f.v[0] * factor, f.v[1] * factor, f.v[2] * factor, f.v[3] * factor),
                         pack_e4m3(f.v[4] * factor, f.v[5] * factor, f.v[6] * factor, f.v[7] * factor)};
    if (column() + kEach <= p.columns) {
      *reinterpret_cast<uint2*>(to) = codes;
      return;
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      if (column() + c < p.columns) to[c] = static_cast<std::uint8_t>((c < 4 ? codes.x : codes.y) >> 8 * (c % 4));
  }

  __device__ float element(int r, int c) const {
    const std::uint32_t word = rows[r].bits[c * sizeof(T) / 4];
    if constexpr (sizeof(T) == 4) return __uint_as_float(word);
    return __uint_as_float(c % 2 ? word & 0xffff0000u : word << 16);
  }

  // Stages the transposed values: of each column, this thread's 8 rows. The place of 8 bytes in a row of shared memory
  // is xored with the thread's column, so that the threads of half a warp use different banks.
  __device__ void stage_columns(TileMemory& m) const {
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const float factor = m.factors[across * kEach + c];
      const auto four = [&](int r) {
        return pack_e4m3(element(r, c) * factor, element(r + 1, c) * factor, element(r + 2, c) * factor,
                         element(r + 3, c) * factor);
      };
      m.transposed[across * kEach + c][down ^ across] = {four(0), four(4)};
    }
  }
};

// Writes the staged tile, 16 rows of a column at a time.
__device__ inline void write_columns(const QuantizeParams& p, const TileMemory& m, std::int64_t first_row,
                                     std::int64_t first_column) {
  constexpr int kRows = 16, kPieces = kSide / kRows;
#pragma unroll
  for (int i = 0; i < kSide * kPieces / kBlock; ++i) {
    const int at = i * kBlock + static_cast<int>(threadIdx.x), c = at / kPieces, piece = at % kPieces;
    const std::int64_t row = first_row + piece * kRows;
    if (first_column + c >= p.columns || row >= p.rows) continue;
    const int key = c / kEach;
    const uint2 low = m.transposed[c][2 * piece ^ key], high = m.transposed[c][(2 * piece + 1) ^ key];
    std::uint8_t* to = p.transposed.values + (first_column + c) * p.transposed.value_stride + row;
    if (row + kRows <= p.rows) {
      *reinterpret_cast<uint4*>(to) = {low.x, low.y, high.x, high.y};
      continue;
    }
    const std::uint32_t words[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (row + r < p.rows) to[r] = static_cast<std::uint8_t>(words[r / 4] >> 8 * (r % 4));
  }
}

// Running maxima of magnitudes, packed as elements are: two bf16 in a word, or one f32.
template <class T>
struct Magnitudes {
  static constexpr int kCount = 4 / static_cast<int>(sizeof(T));
  std::uint32_t bits = 0;

  // Updates the maximum; ignores NaN.
  __device__ void add(std::uint32_t elements) {
    if constexpr (kCount == 1)
      bits = __float_as_uint(fmaxf(__uint_as_float(bits), fabsf(__uint_as_float(elements))));
    else
      asm("max.bf16x2 %0, %0, %1;" : "+r"(bits) : "r"(elements & 0x7fff7fffu));
  }
  __device__ void add_over_lanes(int distance) { add(__shfl_xor_sync(0xffffffffu, bits, distance)); }
  __device__ float at(int i) const {
    return __uint_as_float(kCount == 1 ? bits : i % 2 ? bits & 0xffff0000u : bits << 16);
  }
};

// Largest magnitudes of a thread's elements by row and by column.
template <class T>
struct ThreadMax {
  using Word = Magnitudes<T>;
  Word rows[kEach / Word::kCount], columns[kEach / Word::kCount];

  __device__ explicit ThreadMax(const ThreadTile<T>& t) {
#pragma unroll
    for (int r = 0; r < kEach; r += Word::kCount) {
      Word by_row[Word::kCount];
#pragma unroll
      for (int i = 0; i < Word::kCount; ++i)
#pragma unroll
        for (int w = 0; w < kEach / Word::kCount; ++w) {
          by_row[i].add(t.rows[r + i].bits[w]);
          columns[w].add(t.rows[r + i].bits[w]);
        }
      Word& both = rows[r / Word::kCount];
      if constexpr (Word::kCount == 1) {
        both = by_row[0];
      } else {  // row r in the low half, row r + 1 in the high half
        both.add(__byte_perm(by_row[0].bits, by_row[1].bits, 0x5410));
        both.add(__byte_perm(by_row[0].bits, by_row[1].bits, 0x7632));
      }
    }
  }
  __device__ float row(int r) const { return rows[r / Word::kCount].at(r); }
  __device__ float column(int c) const { return columns[c / Word::kCount].at(c); }
};

__device__ inline float max_over_lanes(float x, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// Writes a tile with a scale for each row of 128, and, in its transpose, for each column of 128.
template <class T>
__device__ void write_tile(const QuantizeParams& p, ThreadTile<T>& t, TileMemory& m) {
  ThreadMax max(t);
  t.keep_packed();
  if (p.transposed.values) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (auto& word : max.columns) word.add_over_lanes(kAcross);
    if (t.down % 2 == 0) {
#pragma unroll
      for (int c = 0; c < kEach; c += 4)
        *reinterpret_cast<float4*>(&m.max[warp][t.across * kEach + c]) = {max.column(c), max.column(c + 1),
                                                                          max.column(c + 2), max.column(c + 3)};
    }
  }
  if (p.out.values) {
#pragma unroll
    for (auto& word : max.rows)
#pragma unroll
      for (int distance = kAcross / 2; distance > 0; distance /= 2) word.add_over_lanes(distance);
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const Fp8Scale s = fp8_scale(max.row(r));
      t.write_row(r, s.factor);
      if (t.across == 0 && t.row() + r < p.rows)
        p.out.scales[t.block_column * p.out.scale_stride + t.row() + r] = s.scale;
    }
  }
  if (!p.transposed.values) return;
  t.keep_packed();
  __syncthreads();
  if (const int c = static_cast<int>(threadIdx.x); c < kSide) {
    float largest = m.max[0][c];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, m.max[w][c]);
    const Fp8Scale s = fp8_scale(largest);
    m.factors[c] = s.factor;
    const std::int64_t column = t.block_column * kSide + c;
    if (column < p.columns) p.transposed.scales[t.block_row * p.transposed.scale_stride + column] = s.scale;
  }
  __syncthreads();
  t.stage_columns(m);
  __syncthreads();
  write_columns(p, m, t.block_row * kSide, t.block_column * kSide);
}

// A source gives the elements of the matrix, rounded to T: at() one of them, pack() kEach neighbours that are aligned.
template <class T>
struct Elements {
  using Type = T;
  const T* x;
  std::int64_t stride;

  __device__ T at(std::int64_t row, std::int64_t column) const { return x[row * stride + column]; }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    return load_pack<T, kEach>(x + row * stride + column);
  }
};

// kBlocks: minimum resident blocks per SM; limits registers.
template <class Source, int kBlocks = sizeof(typename Source::Type) == 2 ? 3 : 2>
__global__ void __launch_bounds__(kBlock, kBlocks) quantize_rows(const Source source, const QuantizeParams p) {
  __shared__ TileMemory m;
  ThreadTile<typename Source::Type> t(p);
  t.load(source);
  write_tile(p, t, m);
}

inline QuantizeParams quantize_params(const Fp8Matrix& out, const Fp8Matrix& transposed, std::int64_t rows,
                                      std::int64_t columns, bool packed) {
  return {rows, columns, static_cast<unsigned>(fp8_blocks(columns)), packed, Fp8Rows(out), Fp8Rows(transposed)};
}

template <class Source>
void launch_tiles(const ExecContext& ctx, void (*kernel)(const Source, const QuantizeParams), const Source& source,
                  const QuantizeParams& p) {
  const std::int64_t tiles = fp8_blocks(p.rows) * p.tiles_across;
  RING_CHECK(tiles < std::int64_t{1} << 31, "FP8 matrix [", p.rows, ",", p.columns, "]: too many blocks");
  if (tiles > 0) launch(ctx, {grid_of(tiles)}, kernel, source, p);
}

}  // namespace ring::cuda
