#pragma once
// FP8 quantization by tiles of 128 x 128 elements, one tile per thread block. There is one scale for the whole tensor
// (tensorwise), or scales for blocks, as one of the operands of a linear layer needs them.

#include "kernels/cuda/device/raise_max.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr int kSide = static_cast<int>(kFp8Block);
constexpr int kEach = 8;                // a thread has kEach x kEach elements of a tile
constexpr int kAcross = kSide / kEach;  // threads along each side of a tile
static_assert(kAcross * kAcross == kBlock);

// Operand of a linear layer. It decides which blocks have a scale in `out`, and which in the transpose.
enum class Operand : std::uint8_t {
  input,     // out: 128 elements of a row; transpose: a tile
  gradient,  // out: 128 elements of a row; transpose: 128 elements of one of its rows
  weight,    // both: a tile
};

// The matrix to quantize, and its destinations.
struct QuantizeParams {
  std::int64_t rows, columns;
  unsigned tiles_across;
  bool packed;  // true if the rows of all sources are aligned and made of whole packs
  Fp8Rows out, transposed;
  float* max;                  // max magnitude of the tensor, if tensorwise
  bool given;                  // true if *max is already final
  bool first_to_last = false;  // if true, tiles run from the first to the last
};

// A thread's place in the tile of its thread block: the 8 rows from 8 * down on, the 8 columns from 8 * across on.
struct Place {
  std::int64_t block_row, block_column;  // position of the tile in the matrix, in units of 128
  int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;

  // The thread block's tile. By default tiles run from the last rows to the first: the last rows are still in L2 from
  // the previous kernel, and the first rows will be in L2 when the next kernel reads the results.
  __device__ explicit Place(const QuantizeParams& p) {
    const unsigned index = p.first_to_last ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    block_row = index / p.tiles_across, block_column = index % p.tiles_across;
  }
  __device__ std::int64_t row() const { return block_row * kSide + down * kEach; }
  __device__ std::int64_t column() const { return block_column * kSide + across * kEach; }
};

// A transposed tile in shared memory. In each row, the index of a thread's 8 bytes is XORed with the thread's `across`,
// so that the threads of half a warp use different banks.
struct TransposedTile {
  uint2 codes[kSide][kAcross];

  // Returns the slot for the codes of the thread's 8 rows in column c.
  __device__ uint2& at(const Place& t, int c) { return codes[t.across * kEach + c][t.down ^ t.across]; }
};

struct TileMemory {
  float max[kWarps][kSide];  // max magnitude per column of a warp's rows
  float factors[kSide];      // scale factor per column
  TransposedTile transposed;
};

// Calls f(r, packs) for each of the thread's 8 rows in the tile. If kParts > 1, the matrix consists of kParts equally
// wide parts side by side, and the tile covers the same columns of each part. packs[part] has the thread's 8 elements
// of row r. Elements outside the matrix are 0.
template <int kParts, class Source, class F>
__device__ void for_each_row(const Source& source, const QuantizeParams& p, const Place& at, const F& f) {
  using T = typename Source::Type;
  const std::int64_t width = p.columns / kParts;
  if (p.packed && (at.block_row + 1) * kSide <= p.rows && (at.block_column + 1) * kSide <= width) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      Pack<T, kEach> x[kParts];
      if constexpr (kParts == 1)
        x[0] = source.pack(at.row() + r, at.column());
      else
        source.packs(at.row() + r, at.column(), x);
      f(r, x);
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    Pack<T, kEach> x[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Floats<kEach> v = {};
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (at.row() + r < p.rows && at.column() + c < width)
          v.v[c] = to_float(source.at(at.row() + r, part * width + at.column() + c));
      x[part] = pack<T>(v);
    }
    f(r, x);
  }
}

// Writes 8 codes of a row, except those at or beyond column `end`.
__device__ inline void write_codes(const QuantizeParams& p, std::int64_t row, std::int64_t column, std::int64_t end,
                                   uint2 codes) {
  if (row >= p.rows) return;
  std::uint8_t* to = p.out.values + row * p.out.value_stride + column;
  if (column + kEach <= end && column % kEach == 0) {  // a part may begin at any column
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll
  for (int c = 0; c < kEach; ++c)
    if (column + c < end) to[c] = static_cast<std::uint8_t>((c < 4 ? codes.x : codes.y) >> 8 * (c % 4));
}

__device__ inline uint2 pack_codes(const Floats<kEach>& f, float factor) {
  return {pack_e4m3(f.v[0] * factor, f.v[1] * factor, f.v[2] * factor, f.v[3] * factor),
          pack_e4m3(f.v[4] * factor, f.v[5] * factor, f.v[6] * factor, f.v[7] * factor)};
}

__device__ inline Floats<kEach> unpack_codes(uint2 codes, float scale) {
  const float4 low = unpack_e4m3(codes.x), high = unpack_e4m3(codes.y);
  return {low.x * scale,  low.y * scale,  low.z * scale,  low.w * scale,
          high.x * scale, high.y * scale, high.z * scale, high.w * scale};
}

// A thread's elements of a tile.
template <class T>
struct ThreadTile : Place {
  const QuantizeParams& p;
  Pack<T, kEach> rows[kEach];

  template <class Source>
  __device__ ThreadTile(const Source& source, const QuantizeParams& p) : Place(p), p(p) {
    for_each_row<1>(source, p, *this, [&](int r, const Pack<T, kEach>(&x)[1]) { rows[r] = x[0]; });
  }

  // Stops the compiler from keeping the elements unpacked, which would take twice the registers.
  __device__ void keep_packed() {
#pragma unroll
    for (Pack<T, kEach>& row : rows)
#pragma unroll
      for (std::uint32_t& bits : row.bits) asm volatile("" : "+r"(bits));
  }

  __device__ void write_row(int r, float factor) const {
    write_codes(p, row() + r, column(), p.columns, pack_codes(unpack(rows[r]), factor));
  }

  __device__ float element(int r, int c) const {
    const std::uint32_t word = rows[r].bits[c * sizeof(T) / 4];
    if constexpr (sizeof(T) == 4) return __uint_as_float(word);
    return __uint_as_float(c % 2 ? word & 0xffff0000u : word << 16);
  }

  // Stages the codes of the thread's 8 rows, transposed, for each of the thread's columns.
  __device__ void stage_columns(TileMemory& m) const {
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const float factor = m.factors[across * kEach + c];
      const auto four = [&](int r) {
        return pack_e4m3(element(r, c) * factor, element(r + 1, c) * factor, element(r + 2, c) * factor,
                         element(r + 3, c) * factor);
      };
      m.transposed.at(*this, c) = {four(0), four(4)};
    }
  }
};

// Writes the staged tile, 16 rows of a column at a time, except columns at or beyond `end`.
__device__ inline void write_columns(const QuantizeParams& p, const TransposedTile& t, std::int64_t first_row,
                                     std::int64_t first_column, std::int64_t end) {
  constexpr int kRows = 16, kPieces = kSide / kRows;
#pragma unroll
  for (int i = 0; i < kSide * kPieces / kBlock; ++i) {
    const int at = i * kBlock + static_cast<int>(threadIdx.x), c = at / kPieces, piece = at % kPieces;
    const std::int64_t row = first_row + piece * kRows;
    if (first_column + c >= end || row >= p.rows) continue;
    const int key = c / kEach;
    const uint2 low = t.codes[c][2 * piece ^ key], high = t.codes[c][(2 * piece + 1) ^ key];
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

// Running maxima of magnitudes, packed like the elements: two bf16 in a word, or one f32.
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

// Maximum magnitudes of a thread's elements, by row and by column.
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
  __device__ Word all() const {
    Word word;
#pragma unroll
    for (const Word& row : rows) word.add(row.bits);
    return word;
  }
};

// Writes a tile with one scale per row. Raises max.rows to the maxima of the tile's whole rows.
template <class T>
__device__ void write_rows(const QuantizeParams& p, const ThreadTile<T>& t, ThreadMax<T>& max) {
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

// Writes a tile with one scale per row and, in the transpose, one scale per column.
template <class T>
__device__ void write_gradient(const QuantizeParams& p, ThreadTile<T>& t, ThreadMax<T>& max) {
  __shared__ TileMemory m;
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
  if (p.out.values) write_rows(p, t, max);
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
  write_columns(p, m.transposed, t.block_row * kSide, t.block_column * kSide, p.columns);
}

// Returns the maximum magnitude of the thread block's elements, ignoring NaN.
template <class T>
__device__ float max_of_block(Magnitudes<T> of_thread) {
  __shared__ float of_warps[kWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) of_thread.add_over_lanes(distance);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = fmaxf(of_thread.at(0), of_thread.at(1));
  __syncthreads();
  float largest = 0;
#pragma unroll
  for (const float max : of_warps) largest = fmaxf(largest, max);
  return largest;
}

// Codes of a thread's elements, for a tile with a single scale, which the transpose shares.
struct ThreadCodes {
  uint2 rows[kEach];

  // Transposes the thread's 8 x 8 codes and stages them.
  __device__ void stage_columns(TransposedTile& t, const Place& at) const {
    uint2 columns[kEach];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      transpose_four(half ? &uint2::y : &uint2::x, 0, &columns[4 * half], &uint2::x);
      transpose_four(half ? &uint2::y : &uint2::x, 4, &columns[4 * half], &uint2::y);
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c) t.at(at, c) = columns[c];
  }

 private:
  // Transposes 4 x 4 bytes: one word of each of four rows becomes one word of each of four columns.
  __device__ void transpose_four(unsigned uint2::*from, int row, uint2* columns, unsigned uint2::*to) const {
    const unsigned a = rows[row].*from, b = rows[row + 1].*from, c = rows[row + 2].*from, d = rows[row + 3].*from;
    const unsigned low_ab = __byte_perm(a, b, 0x5140), low_cd = __byte_perm(c, d, 0x5140);
    const unsigned high_ab = __byte_perm(a, b, 0x7362), high_cd = __byte_perm(c, d, 0x7362);
    columns[0].*to = __byte_perm(low_ab, low_cd, 0x5410);
    columns[1].*to = __byte_perm(low_ab, low_cd, 0x7632);
    columns[2].*to = __byte_perm(high_ab, high_cd, 0x5410);
    columns[3].*to = __byte_perm(high_ab, high_cd, 0x7632);
  }
};

// Write the codes of a tile, or of its transpose: columns from first_column up to `end` or the tile's end.
__device__ inline void write_rows(const QuantizeParams& p, const Place& at, const ThreadCodes& codes,
                                  std::int64_t first_column, std::int64_t end) {
  if (!p.out.values) return;
#pragma unroll
  for (int r = 0; r < kEach; ++r) write_codes(p, at.row() + r, first_column + at.across * kEach, end, codes.rows[r]);
}
__device__ inline void write_transposed(const QuantizeParams& p, const Place& at, const ThreadCodes& codes,
                                        std::int64_t first_column, std::int64_t end, TransposedTile& staged) {
  if (!p.transposed.values) return;
  codes.stage_columns(staged, at);
  __syncthreads();
  write_columns(p, staged, at.block_row * kSide, first_column, end);
}

// Writes a tile whose transpose has a single scale. In `out`, each row has its own scale if kRows is true; otherwise
// `out` shares the scale of the transpose.
template <bool kRows, class T>
__device__ void write_square(const QuantizeParams& p, ThreadTile<T>& t, ThreadMax<T>& max) {
  __shared__ TransposedTile staged;
  if (kRows) {
    if (p.out.values) write_rows(p, t, max);
    if (!p.transposed.values) return;
    t.keep_packed();
  }
  const Fp8Scale s = fp8_scale(max_of_block(max.all()));
  if (threadIdx.x == 0) {
    if (!kRows && p.out.values) p.out.scales[t.block_row * p.out.scale_stride + t.block_column] = s.scale;
    if (p.transposed.values) p.transposed.scales[t.block_column * p.transposed.scale_stride + t.block_row] = s.scale;
  }
  ThreadCodes codes;
#pragma unroll
  for (int r = 0; r < kEach; ++r) codes.rows[r] = pack_codes(unpack(t.rows[r]), s.factor);
  const std::int64_t first = t.block_column * kSide;
  if (!kRows) write_rows(p, t, codes, first, p.columns);
  write_transposed(p, t, codes, first, p.columns, staged);
}

// Replaces infinities by NaN: the conversion to e4m3 keeps NaN but saturates infinities.
template <class T>
__device__ void infinities_to_nan(Pack<T, kEach>& x) {
#pragma unroll
  for (std::uint32_t& bits : x.bits)
    if constexpr (sizeof(T) == 4)
      bits = __float_as_uint(fmaf(__uint_as_float(bits), 0.0f, __uint_as_float(bits)));
    else
      asm("fma.rn.bf16x2 %0, %0, %1, %0;" : "+r"(bits) : "r"(0));
}

// A matrix in memory, as a source. A source returns elements of the matrix to quantize, rounded to T: at() returns one
// element, and pack() returns kEach neighbours from an aligned column on. If the matrix has parts side by side, packs()
// returns the neighbours at the same columns of each part.
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

// Minimum number of resident thread blocks per SM, which limits the registers per thread.
template <class Source>
inline constexpr int kResident = sizeof(typename Source::Type) == 2 ? 3 : 2;

template <Operand kOperand, class Source>
__global__ void __launch_bounds__(kBlock, kResident<Source>)
    quantize_blocks(const Source source, const QuantizeParams p) {
  ThreadTile<typename Source::Type> t(source, p);
  ThreadMax max(t);
  t.keep_packed();
  if constexpr (kOperand == Operand::gradient)
    write_gradient(p, t, max);
  else
    write_square<kOperand == Operand::input>(p, t, max);
}

// Number of parts of a source's matrix that packs() computes at once.
template <class Source>
constexpr int parts_of() {
  if constexpr (requires { Source::kParts; }) return Source::kParts;
  return 1;
}

template <class Source>
__global__ void __launch_bounds__(kBlock, kResident<Source>)
    max_of_source(const Source source, const QuantizeParams p) {
  using T = typename Source::Type;
  constexpr int kParts = parts_of<Source>();
  Magnitudes<T> word;
  for_each_row<kParts>(source, p, Place(p), [&](int, const Pack<T, kEach>(&x)[kParts]) {
#pragma unroll
    for (const Pack<T, kEach>& part : x)
#pragma unroll
      for (const std::uint32_t bits : part.bits) word.add(bits);
  });
  const float max = max_of_block(word);
  if (threadIdx.x == 0) raise_max(p.max, max);
}

template <class Source>
__global__ void __launch_bounds__(kBlock, kResident<Source>)
    quantize_tensor(const Source source, const QuantizeParams p) {
  using T = typename Source::Type;
  constexpr int kParts = parts_of<Source>();
  __shared__ TransposedTile staged[kParts];
  const Fp8Scale s = fp8_tensor_scale(*p.max);
  const Place at(p);
  ThreadCodes codes[kParts];
  for_each_row<kParts>(source, p, at, [&](int r, Pack<T, kEach>(&x)[kParts]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      infinities_to_nan(x[part]);
      codes[part].rows[r] = pack_codes(unpack(x[part]), s.factor);
    }
  });
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (float* scale : {p.out.scales, p.transposed.scales})
      if (scale) *scale = s.scale;
  const std::int64_t width = p.columns / kParts;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const std::int64_t first = part * width + at.block_column * kSide, end = (part + 1) * width;
    write_rows(p, at, codes[part], first, end);
    write_transposed(p, at, codes[part], first, end, staged[part]);
  }
}

// Returns the parameters for an op `a` whose outputs are FP8 matrices.
template <class Args>
QuantizeParams quantize_params(const Args& a, std::int64_t rows, std::int64_t columns, bool packed) {
  return {rows,
          columns,
          static_cast<unsigned>(fp8_blocks(columns)),
          packed,
          Fp8Rows(a.out),
          Fp8Rows(a.transposed),
          device_data<float>(a.max.value),
          a.max.given};
}

template <class Source>
void launch_tiles(const ExecContext& ctx, void (*kernel)(const Source, const QuantizeParams), const Source& source,
                  const QuantizeParams& p) {
  const std::int64_t tiles = fp8_blocks(p.rows) * p.tiles_across;
  RING_CHECK(tiles < std::int64_t{1} << 31, "FP8 matrix [", p.rows, ",", p.columns, "]: too many blocks");
  if (tiles > 0) launch(ctx, {grid_of(tiles)}, kernel, source, p);
}

// Quantizes a source as this operand or, if p.max is set, with one scale for the tensor (tensorwise). If this takes two
// passes, the second pass begins with the tiles with which the first pass ended, which are still in L2.
template <Operand kOperand, class Source>
void launch_quantize(const ExecContext& ctx, const Source& source, QuantizeParams p) {
  if (!p.max) return launch_tiles(ctx, quantize_blocks<kOperand, Source>, source, p);
  p.tiles_across = static_cast<unsigned>(fp8_blocks(p.columns / parts_of<Source>()));
  if (!p.given) launch_tiles(ctx, max_of_source<Source>, source, p);
  p.first_to_last = !p.given;
  if (p.out.values || p.transposed.values) launch_tiles(ctx, quantize_tensor<Source>, source, p);
}

}  // namespace ring::cuda
