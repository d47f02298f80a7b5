#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/swiglu.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/fp8_producers.h"

namespace ring::cuda {
namespace {

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

// RMSNorm, with the bits of norm_forward.cuh for the same rstd.
template <class T>
struct Normed {
  using Type = T;
  const T* x;
  std::int64_t stride;
  const T* w;
  const float* rstd;

  __device__ static float value(float x, float rstd, float w) { return x * rstd * w + 0.0f; }
  __device__ T at(std::int64_t row, std::int64_t column) const {
    return from_float<T>(value(to_float(x[row * stride + column]), rstd[row], to_float(w[column])));
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    Floats<kEach> f = unpack(load_pack<T, kEach>(x + row * stride + column));
    const Floats<kEach> scale = unpack(load_pack<T, kEach>(w + column));
#pragma unroll
    for (int c = 0; c < kEach; ++c) f.v[c] = value(f.v[c], rstd[row], scale.v[c]);
    return cuda::pack<T>(f);
  }
};

template <class T>
struct Gated {
  using Type = T;
  const T* gate_up;
  std::int64_t stride, width;

  __device__ T at(std::int64_t row, std::int64_t column) const {
    const T* gate = gate_up + row * stride + column;
    return from_float<T>(swiglu_of(to_float(gate[0]), to_float(gate[width])));
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    const T* from = gate_up + row * stride + column;
    Floats<kEach> gate = unpack(load_pack<T, kEach>(from));
    const Floats<kEach> up = unpack(load_pack<T, kEach>(from + width));
#pragma unroll
    for (int c = 0; c < kEach; ++c) gate.v[c] = swiglu_of(gate.v[c], up.v[c]);
    return cuda::pack<T>(gate);
  }
};

// Gradients of gate and up side by side. The tiles of both read the same elements, mostly from the cache: blocks that
// run at a time have them.
template <class T>
struct GatedGradient {
  using Type = T;
  const T *gate_up, *dy;
  std::int64_t stride, dy_stride, width;

  __device__ T at(std::int64_t row, std::int64_t column) const {
    const bool of_up = column >= width;
    const std::int64_t c = of_up ? column - width : column;
    const T* gate = gate_up + row * stride + c;
    const SwiGluGradients g =
        swiglu_gradients(to_float(gate[0]), to_float(gate[width]), to_float(dy[row * dy_stride + c]));
    return from_float<T>(of_up ? g.up : g.gate);
  }
  __device__ Pack<T, kEach> pack(std::int64_t row, std::int64_t column) const {
    const bool of_up = column >= width;
    const std::int64_t c = of_up ? column - width : column;
    const T* from = gate_up + row * stride + c;
    Floats<kEach> gate = unpack(load_pack<T, kEach>(from));
    const Floats<kEach> up = unpack(load_pack<T, kEach>(from + width));
    const Floats<kEach> d = unpack(load_pack<T, kEach>(dy + row * dy_stride + c));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const SwiGluGradients g = swiglu_gradients(gate.v[i], up.v[i], d.v[i]);
      gate.v[i] = of_up ? g.up : g.gate;
    }
    return cuda::pack<T>(gate);
  }
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

  __device__ explicit ThreadTile(const QuantizeParams& p)
      : p(p), block_row(blockIdx.x / p.tiles_across), block_column(blockIdx.x % p.tiles_across) {}
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

// Writes a tile with a scale for each row of 128, and, in its transpose, for each column of 128.
template <class T>
__device__ void write_tile(const QuantizeParams& p, const ThreadTile<T>& t, TileMemory& m) {
  const ThreadMax max(t);
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

template <class Source>
__global__ void __launch_bounds__(kBlock) quantize_rows(const Source source, const QuantizeParams p) {
  __shared__ TileMemory m;
  ThreadTile<typename Source::Type> t(p);
  t.load(source);
  write_tile(p, t, m);
}

// A tile with one scale.
template <class T>
__global__ void __launch_bounds__(kBlock) quantize_squares(const Elements<T> source, const QuantizeParams p) {
  __shared__ TileMemory m;
  ThreadTile<T> t(p);
  t.load(source);
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

// rstd of each row, which is the work of a warp.
template <class T>
__global__ void __launch_bounds__(kBlock)
    row_rstd(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t width, float eps, float* rstd) {
  const std::int64_t row = thread_x() / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t c = lane * kPack<T>; c < width; c += kWarp * kPack<T>)
    for (const float v : load(x + row * stride, c, width).v) sum += v * v;
  sum = group_sum<kWarp>(sum);
  if (lane == 0) rstd[row] = rsqrtf(sum * (1.0f / static_cast<float>(width)) + eps);
}

QuantizeParams params(const Fp8Matrix& out, const Fp8Matrix& transposed, std::int64_t rows, std::int64_t columns,
                      bool packed) {
  return {rows, columns, static_cast<unsigned>(fp8_blocks(columns)), packed, Fp8Rows(out), Fp8Rows(transposed)};
}

template <class Source>
void launch_tiles(const ExecContext& ctx, void (*kernel)(const Source, const QuantizeParams), const Source& source,
                  const QuantizeParams& p) {
  const std::int64_t tiles = fp8_blocks(p.rows) * p.tiles_across;
  RING_CHECK(tiles < std::int64_t{1} << 31, "FP8 matrix [", p.rows, ",", p.columns, "]: too many blocks");
  if (tiles > 0) launch(ctx, {grid_of(tiles)}, kernel, source, p);
}

void run_quantize(const QuantizeFp8& q, const ExecContext& ctx) {
  check(q);
  const bool squares = (q.out.defined() ? q.out : q.transposed).blocks == Fp8Blocks::squares;
  visit_float("quantize_fp8", q.x.dtype(), [&]<class T>() {
    const bool packed = made_of_packs(device_rows<T>("quantize_fp8", "x", q.x));
    launch_tiles(ctx, squares ? quantize_squares<T> : quantize_rows<Elements<T>>,
                 Elements<T>{device_data<T>(q.x), q.x.stride(0)},
                 params(q.out, q.transposed, q.x.dim(0), q.x.dim(1), packed));
  });
}

void run_norm(const RmsNormFp8& a, const ExecContext& ctx) {
  check(a);
  visit_float("rms_norm_fp8", a.x.dtype(), [&]<class T>() {
    const T *x = device_data<T>(a.x), *w = device_data<T>(a.w);
    const std::int64_t rows = a.x.dim(0), columns = a.x.dim(1), stride = a.x.stride(0);
    if (rows == 0) return;
    float* rstd = device_data<float>(a.rstd);
    launch(ctx, {grid_of(divide_up(rows, kWarps))}, row_rstd<T>, x, stride, rows, columns, a.eps, rstd);
    const bool packed = made_of_packs(device_rows<T>("rms_norm_fp8", "x", a.x)) && is_aligned(w);
    launch_tiles(ctx, quantize_rows<Normed<T>>, Normed<T>{x, stride, w, rstd},
                 params(a.out, a.transposed, rows, columns, packed));
  });
}

void run_swiglu(const SwiGluFp8& a, const ExecContext& ctx) {
  check(a);
  visit_float("swiglu_fp8", a.gate_up.dtype(), [&]<class T>() {
    const std::int64_t width = a.gate_up.dim(1) / 2;
    const bool packed = made_of_packs(device_rows<T>("swiglu_fp8", "gate_up", a.gate_up)) && width % kEach == 0;
    launch_tiles(ctx, quantize_rows<Gated<T>>, Gated<T>{device_data<T>(a.gate_up), a.gate_up.stride(0), width},
                 params(a.out, a.transposed, a.gate_up.dim(0), width, packed));
  });
}

void run_swiglu_backward(const SwiGluBackwardFp8& a, const ExecContext& ctx) {
  constexpr std::string_view op = "swiglu_backward_fp8";
  check(a);
  visit_float(op, a.dy.dtype(), [&]<class T>() {
    const std::int64_t rows = a.dy.dim(0), width = a.dy.dim(1);
    const bool packed = made_of_packs(device_rows<T>(op, "gate_up", a.gate_up)) &&
                        made_of_packs(device_rows<T>(op, "dy", a.dy)) && width % kEach == 0;
    launch_tiles(
        ctx, quantize_rows<GatedGradient<T>>,
        GatedGradient<T>{device_data<T>(a.gate_up), device_data<T>(a.dy), a.gate_up.stride(0), a.dy.stride(0), width},
        params(a.out, a.transposed, rows, 2 * width, packed));
  });
}

const bool added[] = {
    quantize_fp8_kernel.add(Backend::cuda, {"tiles", run_quantize}),
    rms_norm_fp8_kernel.add(Backend::cuda, {"tiles", run_norm, nullptr, 10}),
    swiglu_fp8_kernel.add(Backend::cuda, {"tiles", run_swiglu, nullptr, 10}),
    swiglu_backward_fp8_kernel.add(Backend::cuda, {"tiles", run_swiglu_backward, nullptr, 10}),
    rms_norm_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
    swiglu_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
    swiglu_backward_fp8_kernel.add(Backend::cuda, {"separate", run_separately}),
};

}  // namespace
}  // namespace ring::cuda
