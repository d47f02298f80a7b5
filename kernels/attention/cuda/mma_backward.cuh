#pragma once
// The backward on tensor cores. One kernel serves both directions: a thread block owns rows of two operands (x, y) and
// streams tiles of the other two (a, b) past them. With S = scale x.a and dP = y.b for each pair, P = exp(S - lse) and
// dS = P (dP - delta):
//   owning keys:     x, y = k, v;     a, b = q, dout;   dk = scale sum dS a,  dv = sum P b
//   owning queries:  x, y = q, dout;  a, b = k, v;      dq = scale sum dS a
// Nothing is summed across blocks, so that the bits repeat and no memory is needed; the price is that S and dP are
// computed twice, 7 products instead of 5. P and dS go from one product to the next without leaving their lanes.

#include "kernels/attention/cuda/tile.cuh"
#include "kernels/attention/cuda/work.cuh"

namespace ring::cuda {

// kTiles: of 16 rows that a warp owns; kStream: rows of a streamed tile; kParts: warps that share their rows and each
// sum a part of the columns (heads of 256 leave no registers for whole rows; S and dP are then computed by each).
template <Owner owner, int kDim>
struct BackwardShape;
template <>
struct BackwardShape<Owner::keys, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 32, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::keys, 96> {
  static constexpr int kWarps = 4, kTiles = 1, kStream = 64, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::keys, 128> {
  static constexpr int kWarps = 4, kTiles = 1, kStream = 64, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::keys, 256> {
  static constexpr int kWarps = 8, kTiles = 1, kStream = 32, kParts = 2, kBlocksPerProcessor = 1;
};
template <>
struct BackwardShape<Owner::queries, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 64, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::queries, 96> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 32, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::queries, 128> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 32, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Owner::queries, 256> {
  static constexpr int kWarps = 8, kTiles = 1, kStream = 32, kParts = 1, kBlocksPerProcessor = 1;
};

template <Owner owner, int kDim>
struct BackwardSizes : BackwardShape<owner, kDim> {
  using Base = BackwardShape<owner, kDim>;
  static constexpr int kThreads = 32 * Base::kWarps, kRowWarps = Base::kWarps / Base::kParts;
  static constexpr int kRows = 16 * Base::kTiles * kRowWarps;
  static constexpr int kOwn = kRows * kPitch<kDim>, kTile = Base::kStream * kPitch<kDim>;  // bytes of one operand
  static constexpr int kStatistics = owner == Owner::keys ? 2 * Base::kStream * 4 : 0;
  static constexpr int kStage = 2 * kTile + kStatistics, kBytes = 2 * kOwn + 2 * kStage;
  static constexpr int kColumns = kDim / Base::kParts;  // that a warp sums
};

struct BackwardParams {
  HeadsOf<const Bf16> x, y, a, b;
  HeadsOf<Bf16> dx, dy;       // of x and, owning keys, of y
  const float *lse2, *delta;  // [Hq,N]
  std::int64_t tokens;
  int dim, group;
  float factor, scale;  // from a product to a power of two; of the scores
  bool causal;
  Work work;
};

// lse2 and delta of the rows or columns of a lane's sums.
template <Owner owner, int kM, int kN>
struct LaneStatistics;
template <int kM, int kN>
struct LaneStatistics<Owner::queries, kM, kN> {
  float lse2_of[kM][2], delta_of[kM][2];
  __device__ void load(const float* lse2, const float* delta, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        lse2_of[m][half] = row < rows ? lse2[row] : INFINITY;
        delta_of[m][half] = row < rows ? delta[row] : 0.0f;
      }
  }
  __device__ void stage(const float*) {}
  __device__ float lse2(int m, int, int i) const { return lse2_of[m][i / 2]; }
  __device__ float delta(int m, int, int i) const { return delta_of[m][i / 2]; }
};
template <int kM, int kN>
struct LaneStatistics<Owner::keys, kM, kN> {
  const float* columns;  // lse2 of the tile's 8 kN columns, then delta
  __device__ void load(const float*, const float*, int) {}
  __device__ void stage(const float* shared) { columns = shared + static_cast<int>(threadIdx.x) % 4 * 2; }
  __device__ float lse2(int, int n, int i) const { return columns[n * 8 + i % 2]; }
  __device__ float delta(int, int n, int i) const { return columns[8 * kN + n * 8 + i % 2]; }
};

// Scores become weights.
template <Owner owner, int kM, int kN>
__device__ inline void weights_of(float (&s)[kM][kN][4], const LaneStatistics<owner, kM, kN>& of, float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = fast_exp2(fmaf(s[m][n][i], factor, -of.lse2(m, n, i)));
}

template <Owner owner, int kM, int kN>
__device__ inline void apply_mask(float (&s)[kM][kN][4], const Mask<owner>& counts, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  row += lane / 4;
  column += lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!counts(row + m * 16 + i / 2 * 8, column + n * 8 + i % 2)) s[m][n][i] = -INFINITY;
}

// dP becomes dS.
template <Owner owner, int kM, int kN>
__device__ inline void score_gradients(float (&dp)[kM][kN][4], const float (&p)[kM][kN][4],
                                       const LaneStatistics<owner, kM, kN>& of) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - of.delta(m, n, i));
}

// Queues lse2 and delta of the streamed queries: of kStream rows, those from `rows` on become 0, as their rows do.
template <int kStream, int kThreads>
__device__ inline void load_statistics(unsigned char* shared, const float* lse2, const float* delta, int rows) {
  static_assert(2 * kStream <= kThreads);
  const int i = static_cast<int>(threadIdx.x), row = i % kStream;
  if (i < 2 * kStream) copy_async4(shared + i * 4, (i < kStream ? lse2 : delta) + row, row < rows);
}

template <int kM>
__device__ inline void fill(float (&factor)[kM][2], float value) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) factor[i / 2][i % 2] = value;
}

// What a warp sums.
template <Owner owner, int kDim>
struct GradientSums {
  using Sizes = BackwardSizes<owner, kDim>;
  static constexpr bool kBoth = owner == Owner::keys;
  float dx[Sizes::kTiles][Sizes::kColumns / 8][4];
  float dy[kBoth ? Sizes::kTiles : 1][kBoth ? Sizes::kColumns / 8 : 1][4];
};

// Where a warp and its tile are: positions within the sequence, the warp's first column, addresses of its rows of x and
// of the stage.
struct TilePlace {
  int row, column, part;
  std::uint32_t x, stage;
};

template <Owner owner, int kDim>
__device__ inline void add_tile(GradientSums<owner, kDim>& sums,
                                const LaneStatistics<owner, BackwardSizes<owner, kDim>::kTiles,
                                                     BackwardSizes<owner, kDim>::kStream / 8>& statistics,
                                const Mask<owner>& mask, const TilePlace& at, float factor) {
  using Sizes = BackwardSizes<owner, kDim>;
  constexpr int kM = Sizes::kTiles, kN = Sizes::kStream / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t a_rows = at.stage + rows_first<kDim>(lane) + at.part * 2;
  const std::uint32_t a_columns = at.stage + columns_first<kDim>(lane);
  float weights[kM][kN][4], gradients[kM][kN][4];
  std::uint32_t packed[kM][kN / 2][4];
  clear(weights);
  multiply_rows<kDim>(weights, at.x, a_columns);
  if (!mask.all(at.row, 16 * kM, at.column, Sizes::kStream)) apply_mask(weights, mask, at.row, at.column);
  weights_of<owner>(weights, statistics, factor);
  if constexpr (owner == Owner::keys) {
    as_operand(packed, weights);
    multiply_packed<kDim>(sums.dy, packed, a_rows + Sizes::kTile);
  }
  clear(gradients);
  multiply_rows<kDim>(gradients, at.x + Sizes::kOwn, a_columns + Sizes::kTile);
  score_gradients<owner>(gradients, weights, statistics);
  as_operand(packed, gradients);
  multiply_packed<kDim>(sums.dx, packed, a_rows);
}

// The shared memory of x and y, no longer needed, stages the rows.
template <Owner owner, int kDim>
__device__ inline void store_gradients(const GradientSums<owner, kDim>& sums, const BackwardParams& p,
                                       const Work::Place& at, int in_block, int part, unsigned char* memory) {
  using Sizes = BackwardSizes<owner, kDim>;
  const std::int64_t token = std::int64_t{at.start} + at.row + in_block;
  const int rows = at.length - at.row - in_block, columns = p.dim - part;
  unsigned char* staging = memory + in_block * kPitch<kDim> + part * 2;
  float factor[Sizes::kTiles][2];
  fill(factor, p.scale);
  store_rows<kDim>(sums.dx, factor, staging, p.dx.at(token, at.head) + part, p.dx.row, rows, columns);
  if constexpr (owner == Owner::keys) {
    fill(factor, 1.0f);
    store_rows<kDim>(sums.dy, factor, staging + Sizes::kOwn, p.dy.at(token, at.head) + part, p.dy.row, rows, columns);
  }
}

template <Owner owner, int kDim>
__global__ __launch_bounds__(
    BackwardSizes<owner, kDim>::kThreads,
    BackwardSizes<owner, kDim>::kBlocksPerProcessor) void mma_backward(const __grid_constant__ BackwardParams p) {
  using Sizes = BackwardSizes<owner, kDim>;
  constexpr bool kKeys = owner == Owner::keys;
  constexpr int kM = Sizes::kTiles, kStream = Sizes::kStream, kN = kStream / 8, kThreads = Sizes::kThreads;
  extern __shared__ __align__(16) unsigned char memory[];
  const Work::Place at = p.work[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int in_block = warp % Sizes::kRowWarps * 16 * kM, row = at.row + in_block;  // first of this warp
  const int part = warp / Sizes::kRowWarps * Sizes::kColumns;                       // its first column
  const int end = !kKeys && p.causal ? min(at.length, at.row + Sizes::kRows) : at.length;
  const Tiles stream(kKeys && p.causal ? at.row : 0, end, kStream, kKeys ? p.group : 1);
  const int first_head = kKeys ? at.head * p.group : at.head / p.group;  // of the streamed operands

  unsigned char* stages = memory + 2 * Sizes::kOwn;
  const auto load_stage = [&](int i, const Tiles::Place& tile) {
    const int head = first_head + tile.head, rows = at.length - tile.row;
    const std::int64_t token = std::int64_t{at.start} + tile.row;
    unsigned char* stage = stages + i % 2 * Sizes::kStage;
    load_tile<kDim, kStream, kThreads>(stage, p.a.at(token, head), static_cast<int>(p.a.row), rows, p.dim);
    load_tile<kDim, kStream, kThreads>(stage + Sizes::kTile, p.b.at(token, head), static_cast<int>(p.b.row), rows,
                                       p.dim);
    if constexpr (kKeys)
      load_statistics<kStream, kThreads>(stage + 2 * Sizes::kTile, p.lse2 + head * p.tokens + token,
                                         p.delta + head * p.tokens + token, rows);
    end_copies();
  };
  const std::int64_t token = std::int64_t{at.start} + at.row;
  load_tile<kDim, Sizes::kRows, kThreads>(memory, p.x.at(token, at.head), static_cast<int>(p.x.row), at.length - at.row,
                                          p.dim);
  load_tile<kDim, Sizes::kRows, kThreads>(memory + Sizes::kOwn, p.y.at(token, at.head), static_cast<int>(p.y.row),
                                          at.length - at.row, p.dim);
  Tiles::Place tile = stream.begin(), next = stream.after(tile);
  load_stage(0, tile);

  GradientSums<owner, kDim> sums;
  clear(sums.dx);
  clear(sums.dy);
  const Mask<owner> mask{at.length, p.causal};
  LaneStatistics<owner, kM, kN> statistics;
  const std::int64_t own_row = at.head * p.tokens + at.start + row;
  statistics.load(p.lse2 + own_row, p.delta + own_row, at.length - row);
  const std::uint32_t x = shared_address(memory) + in_block * kPitch<kDim> + rows_first<kDim>(lane);
  for (int i = 0; i < stream.count; ++i, tile = next, next = stream.after(next)) {
    await_copies<0>();
    __syncthreads();  // the tile is there, and the other stage has been read
    if (i + 1 < stream.count) load_stage(i + 1, next);
    const int column = tile.row;
    if (mask.none(row, 16 * kM, column, kStream)) continue;
    unsigned char* stage = stages + i % 2 * Sizes::kStage;
    statistics.stage(reinterpret_cast<const float*>(stage + 2 * Sizes::kTile));
    add_tile<owner, kDim>(sums, statistics, mask, {row, column, part, x, shared_address(stage)}, p.factor);
  }
  __syncthreads();  // warps that share rows have read them
  if (row < at.length) store_gradients<owner, kDim>(sums, p, at, in_block, part, memory);
}

template <Owner owner, int kDim>
void launch_mma_backward(const AttentionBackward& args, BackwardParams p, std::int64_t heads, const Context& ctx) {
  using Sizes = BackwardSizes<owner, kDim>;
  const std::int64_t shared_by = owner == Owner::keys ? 1 : p.group;  // blocks that stream the same rows
  const BlockPlan plan =
      plan_blocks(args.offsets, owner, static_cast<int>(heads), Sizes::kRows, args.causal,
                  std::max<std::int64_t>(1, 4 * p.dim * (owner == Owner::keys ? p.group : 1) / shared_by), ctx);
  p.work = plan.work;
  launch(ctx, {grid_of(plan.blocks), Sizes::kThreads, Sizes::kBytes}, mma_backward<owner, kDim>, p);
}

template <int kDim>
void run_mma_backward(const AttentionBackward& args, const Context& ctx) {
  check(args);
  fill_outside(args, ctx);
  const RowStatistics statistics = row_statistics(args, ctx);
  const auto q = heads_of<const Bf16>(args.q), k = heads_of<const Bf16>(args.k), v = heads_of<const Bf16>(args.v),
             dout = heads_of<const Bf16>(args.dout);
  BackwardParams p{.x = k,
                   .y = v,
                   .a = q,
                   .b = dout,
                   .dx = heads_of<Bf16>(args.dk),
                   .dy = heads_of<Bf16>(args.dv),
                   .lse2 = statistics.lse2.data<float>(),
                   .delta = statistics.delta.data<float>(),
                   .tokens = args.q.dim(0),
                   .dim = static_cast<int>(args.q.dim(2)),
                   .group = static_cast<int>(args.q.dim(1) / args.k.dim(1)),
                   .factor = args.scale * kLog2E,
                   .scale = args.scale,
                   .causal = args.causal,
                   .work = {}};
  launch_mma_backward<Owner::keys, kDim>(args, p, args.k.dim(1), ctx);
  p.x = q, p.y = dout, p.a = k, p.b = v, p.dx = heads_of<Bf16>(args.dq), p.dy = {};
  launch_mma_backward<Owner::queries, kDim>(args, p, args.q.dim(1), ctx);
}

}  // namespace ring::cuda
