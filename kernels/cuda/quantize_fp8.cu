#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"

namespace ring::cuda {
namespace {

constexpr int kSide = static_cast<int>(kFp8Block), kWarps = kBlock / kWarp;
constexpr int kEach = 8;                // a thread has kEach x kEach elements of a tile
constexpr int kAcross = kSide / kEach;  // threads along each side
static_assert(kAcross * kAcross == kBlock);

template <class T>
struct QuantizeParams {
  const T* x;
  std::int64_t stride, rows, columns;
  unsigned tiles_across;
  bool packed;  // whether rows of x are made of aligned packs
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
  const QuantizeParams<T>& p;
  std::int64_t block_row, block_column;  // in blocks of 128
  int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  Pack<T, kEach> rows[kEach] = {};

  __device__ explicit ThreadTile(const QuantizeParams<T>& p)
      : p(p), block_row(blockIdx.x / p.tiles_across), block_column(blockIdx.x % p.tiles_across) {}
  __device__ std::int64_t row() const { return block_row * kSide + down * kEach; }
  __device__ std::int64_t column() const { return block_column * kSide + across * kEach; }

  // Elements outside x are 0.
  __device__ void load() {
    const T* from = p.x + row() * p.stride + column();
    if (p.packed && (block_row + 1) * kSide <= p.rows && (block_column + 1) * kSide <= p.columns) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) rows[r] = load_pack<T, kEach>(from + r * p.stride);
      return;
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      Floats<kEach> f = {};
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (row() + r < p.rows && column() + c < p.columns) f.v[c] = to_float(from[r * p.stride + c]);
      rows[r] = pack<T>(f);
    }
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

  // Stages the transposed values: of each column, this thread's 8 rows. The place of 8 bytes in a row of shared memory
  // is xored with the thread's column, so that the threads of half a warp use different banks.
  __device__ void stage_columns(TileMemory& m) const {
    float v[kEach][kEach];
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const Floats<kEach> f = unpack(rows[r]);
#pragma unroll
      for (int c = 0; c < kEach; ++c) v[c][r] = f.v[c] * m.factors[across * kEach + c];
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      m.transposed[across * kEach + c][down ^ across] = {pack_e4m3(v[c][0], v[c][1], v[c][2], v[c][3]),
                                                         pack_e4m3(v[c][4], v[c][5], v[c][6], v[c][7])};
  }
};

// Writes the staged tile, 16 rows of a column at a time.
template <class T>
__device__ void write_columns(const QuantizeParams<T>& p, const TileMemory& m, std::int64_t first_row,
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

// Largest magnitudes of a thread's elements by row and by column, NaN left out.
struct ThreadMax {
  float rows[kEach] = {}, columns[kEach] = {};

  template <class T>
  __device__ explicit ThreadMax(const ThreadTile<T>& t) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const Floats<kEach> f = unpack(t.rows[r]);
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        rows[r] = fmaxf(rows[r], fabsf(f.v[c]));
        columns[c] = fmaxf(columns[c], fabsf(f.v[c]));
      }
    }
  }
};

__device__ inline float max_over_lanes(float x, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// A tile with a scale for each row of 128, and, in its transpose, for each column of 128.
template <class T>
__global__ void __launch_bounds__(kBlock) quantize_rows(const QuantizeParams<T> p) {
  __shared__ TileMemory m;
  ThreadTile<T> t(p);
  t.load();
  ThreadMax max(t);
  if (p.out.values) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const Fp8Scale s = fp8_scale(max_over_lanes(max.rows[r], kAcross));
      t.write_row(r, s.factor);
      if (t.across == 0 && t.row() + r < p.rows)
        p.out.scales[t.block_column * p.out.scale_stride + t.row() + r] = s.scale;
    }
  }
  if (!p.transposed.values) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const float both = fmaxf(max.columns[c], __shfl_xor_sync(0xffffffffu, max.columns[c], kAcross));
    if (t.down % 2 == 0) m.max[warp][t.across * kEach + c] = both;
  }
  __syncthreads();
  if (threadIdx.x < kSide) {
    const int c = static_cast<int>(threadIdx.x);
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

// A tile with one scale.
template <class T>
__global__ void __launch_bounds__(kBlock) quantize_squares(const QuantizeParams<T> p) {
  __shared__ TileMemory m;
  ThreadTile<T> t(p);
  t.load();
  const ThreadMax max(t);
  float largest = 0;
#pragma unroll
  for (int c = 0; c < kEach; ++c) largest = fmaxf(largest, max.columns[c]);
  largest = max_over_lanes(largest, kWarp);
  if (threadIdx.x % kWarp == 0) m.max[threadIdx.x / kWarp][0] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, m.max[w][0]);
  const Fp8Scale s = fp8_scale(largest);
  if (p.out.values) {
#pragma unroll
    for (int r = 0; r < kEach; ++r) t.write_row(r, s.factor);
    if (threadIdx.x == 0) p.out.scales[t.block_row * p.out.scale_stride + t.block_column] = s.scale;
  }
  if (!p.transposed.values) return;
  if (threadIdx.x == 0) p.transposed.scales[t.block_column * p.transposed.scale_stride + t.block_row] = s.scale;
  if (threadIdx.x < kSide) m.factors[threadIdx.x] = s.factor;
  __syncthreads();
  t.stage_columns(m);
  __syncthreads();
  write_columns(p, m, t.block_row * kSide, t.block_column * kSide);
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  const std::int64_t across = fp8_blocks(q.x.dim(1)), tiles = fp8_blocks(q.x.dim(0)) * across;
  RING_CHECK(tiles < std::int64_t{1} << 31, "quantize_fp8 of ", describe(q.x), ": too many blocks");
  const bool squares = (q.out.defined() ? q.out : q.transposed).blocks == Fp8Blocks::squares;
  visit_float("quantize_fp8", q.x.dtype(), [&]<class T>() {
    const QuantizeParams<T> p{device_data<T>(q.x),
                              q.x.stride(0),
                              q.x.dim(0),
                              q.x.dim(1),
                              static_cast<unsigned>(across),
                              made_of_packs(device_rows<T>("quantize_fp8", "x", q.x)),
                              Fp8Rows(q.out),
                              Fp8Rows(q.transposed)};
    launch(ctx, {grid_of(tiles)}, squares ? quantize_squares<T> : quantize_rows<T>, p);
  });
}

const bool added = quantize_fp8_kernel.add(Backend::cuda, {"tiles", run_quantize});

}  // namespace
}  // namespace ring::cuda
