#pragma once
// Tensor-core (mma.sync) backward. One kernel template computes dk and dv or dq: a thread block owns rows of two
// operands (x, y) and streams tiles of the other two (a, b). With S = scale x.a and dP = y.b for each pair, P = exp(S -
// lse) and dS = P (dP - delta):
//   owning keys:     x, y = k, v;     a, b = q, dout;   dk = scale sum dS a,  dv = sum P b
//   owning queries:  x, y = q, dout;  a, b = k, v;      dq = scale sum dS a
// With dropout, dP and the P of dv only keep the pairs that were not dropped (dropout.cuh). Nothing is accumulated
// across thread blocks, so results are bit-identical from run to run and no workspace is needed. In return, S and dP
// are computed twice: 7 GEMMs instead of 5. P and dS go from one GEMM to the next without leaving their lanes.

#include "kernels/attention/cuda/backward_params.cuh"
#include "kernels/attention/cuda/mma_block.cuh"

namespace ring::cuda {

// kTiles: tiles of 16 rows per warp. kStream: rows of a streamed tile. kParts: number of warps that share
// rows; each accumulates a part of the columns. Heads of 256 leave no registers for whole rows, so each warp
// then computes S and dP itself.
template <Stationary owner, int kDim>
struct BackwardShape;
template <>
struct BackwardShape<Stationary::kv, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 32, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Stationary::kv, 128> {
  static constexpr int kWarps = 4, kTiles = 1, kStream = 64, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Stationary::kv, 256> {
  static constexpr int kWarps = 8, kTiles = 1, kStream = 32, kParts = 2, kBlocksPerProcessor = 1;
};
template <>
struct BackwardShape<Stationary::q, 64> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 64, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Stationary::q, 128> {
  static constexpr int kWarps = 4, kTiles = 2, kStream = 32, kParts = 1, kBlocksPerProcessor = 2;
};
template <>
struct BackwardShape<Stationary::q, 256> {
  static constexpr int kWarps = 8, kTiles = 1, kStream = 32, kParts = 1, kBlocksPerProcessor = 1;
};

template <Stationary owner, int kDim, bool kDrops>
struct BackwardSizes : BackwardShape<owner, kDim> {
  using Base = BackwardShape<owner, kDim>;
  static constexpr int kThreads = 32 * Base::kWarps, kRowWarps = Base::kWarps / Base::kParts;
  static constexpr int kRows = 16 * Base::kTiles * kRowWarps;
  static constexpr int kOwn = kRows * kPitch<kDim>, kTile = Base::kStream * kPitch<kDim>;  // bytes of one operand
  static constexpr int kEach = kDrops ? 3 : 2;  // values per streamed query: lse2, delta, and its dropout key
  static constexpr int kStatistics = owner == Stationary::kv ? kEach * Base::kStream * 4 : 0;
  // kCtaState: byte offset of the CtaState.
  static constexpr int kStage = 2 * kTile + kStatistics, kCtaState = 2 * kOwn + 2 * kStage;
  static constexpr int kBytes = kCtaState + sizeof(CtaState<owner, Base::kWarps>);
  static constexpr int kColumns = kDim / Base::kParts;  // columns that a warp accumulates
};

// lse2 and delta of the rows or columns of a lane's accumulators.
template <Stationary owner, int kM, int kN>
struct LaneStatistics;
template <int kM, int kN>
struct LaneStatistics<Stationary::q, kM, kN> {
  float lse2_of[kM][2], delta_of[kM][2];
  // Loads the values of the warp's rows, `stride` apart. lse2 and delta point to the values of the warp's first row.
  __device__ void load(const float* lse2, const float* delta, int stride, Range exist) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        const std::int64_t at = std::int64_t{row} * stride;
        lse2_of[m][half] = exist.has(row) ? lse2[at] : 0.0f;
        delta_of[m][half] = exist.has(row) ? delta[at] : 0.0f;
      }
  }
  __device__ void stage(const float*) {}
  __device__ float lse2(int m, int, int i) const { return lse2_of[m][i / 2]; }
  __device__ float delta(int m, int, int i) const { return delta_of[m][i / 2]; }
};
template <int kM, int kN>
struct LaneStatistics<Stationary::kv, kM, kN> {
  const float* columns;  // lse2 of the tile's 8 kN columns, then delta
  __device__ void load(const float*, const float*, int, Range) {}
  __device__ void stage(const float* shared) { columns = shared + static_cast<int>(threadIdx.x) % 4 * 2; }
  __device__ float lse2(int, int n, int i) const { return columns[n * 8 + i % 2]; }
  __device__ float delta(int, int n, int i) const { return columns[8 * kN + n * 8 + i % 2]; }
};

// Converts scores to P in place.
template <Stationary owner, int kM, int kN>
__device__ inline void weights_of(float (&s)[kM][kN][4], const LaneStatistics<owner, kM, kN>& of, float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] = fast_exp2(fmaf(s[m][n][i], factor, -of.lse2(m, n, i)));
}

// Converts dP to dS in place.
template <Stationary owner, int kM, int kN>
__device__ inline void score_gradients(float (&dp)[kM][kN][4], const float (&p)[kM][kN][4],
                                       const LaneStatistics<owner, kM, kN>& of) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - of.delta(m, n, i));
}

// With dropout: converts dP to dS in place and sets dropped elements of P to 0.
template <Stationary owner, int kM, int kN>
__device__ inline void dropped_score_gradients(float (&dp)[kM][kN][4], float (&p)[kM][kN][4],
                                               const LaneStatistics<owner, kM, kN>& of,
                                               const LaneDropout<owner, kM, kN>& dropout, std::uint32_t threshold) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool drops = dropout.bits(m, n, i) < threshold;
        dp[m][n][i] = p[m][n][i] * ((drops ? 0.0f : dp[m][n][i]) - of.delta(m, n, i));
        if (drops) p[m][n][i] = 0.0f;
      }
}

// Issues cp.async copies of lse2 and delta of kStream streamed queries, `stride` apart. Queries that are out of range
// get 0, as do their rows. load_keys does the same for dropout keys, which are stored after lse2 and delta.
template <int kStream, int kThreads>
__device__ inline void load_statistics(unsigned char* shared, const float* lse2, const float* delta, int stride,
                                       Range exist) {
  static_assert(2 * kStream <= kThreads);
  const int i = static_cast<int>(threadIdx.x), row = i % kStream;
  if (i < 2 * kStream)
    cp_async4(shared + i * 4, (i < kStream ? lse2 : delta) + std::int64_t{row} * stride, exist.has(row));
}
template <int kStream>
__device__ inline void load_keys(unsigned char* shared, const std::uint32_t* keys, int stride, Range exist) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kStream) cp_async4(shared + i * 4, keys + std::int64_t{i} * stride, exist.has(i));
}

template <int kM>
__device__ inline void fill(float (&factor)[kM][2], float value) {
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) factor[i / 2][i % 2] = value;
}

// A warp's accumulators.
template <Stationary owner, int kDim>
struct GradientSums {
  using Sizes = BackwardSizes<owner, kDim, false>;
  static constexpr bool kBoth = owner == Stationary::kv;
  float dx[Sizes::kTiles][Sizes::kColumns / 8][4];
  float dy[kBoth ? Sizes::kTiles : 1][kBoth ? Sizes::kColumns / 8 : 1][4];
};

// Position of a warp and its tile: first row and first column as samples of the head segment, the warp's first column
// of the head dim (part), and shared-memory addresses of the warp's rows of x and of the stage.
struct TileCoord {
  int row, column, part;
  std::uint32_t x, stage;
};

// Inputs of a lane other than the operands: lse2, delta and dropout keys of its rows and columns.
template <Stationary owner, int kDim>
struct LaneNumbers {
  using Shape = BackwardShape<owner, kDim>;
  LaneStatistics<owner, Shape::kTiles, Shape::kStream / 8> statistics;
  LaneDropout<owner, Shape::kTiles, Shape::kStream / 8> dropout;
};

template <Stationary owner, int kDim, bool kDrops>
__device__ inline void add_tile(GradientSums<owner, kDim>& sums, const LaneNumbers<owner, kDim>& of,
                                const HeadSegment& segment, bool all, const TileCoord& at, float factor,
                                std::uint32_t threshold) {
  using Sizes = BackwardSizes<owner, kDim, kDrops>;
  constexpr int kM = Sizes::kTiles, kN = Sizes::kStream / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t a_rows = at.stage + rows_first<kDim>(lane) + at.part * 2;
  const std::uint32_t a_columns = at.stage + columns_first<kDim>(lane);
  float weights[kM][kN][4], gradients[kM][kN][4];
  std::uint32_t packed[kM][kN / 2][4];
  const auto add_values = [&] {
    if constexpr (owner == Stationary::kv) {
      as_operand(packed, weights);
      gemm_nn<kDim>(sums.dy, packed, a_rows + Sizes::kTile);
    }
  };
  clear(weights);
  gemm_nt<kDim>(weights, at.x, a_columns);
  if (!all) mask_columns<owner>(weights, segment, at.row, at.column);
  weights_of<owner>(weights, of.statistics, factor);
  if constexpr (!kDrops) add_values();
  clear(gradients);
  gemm_nt<kDim>(gradients, at.x + Sizes::kOwn, a_columns + Sizes::kTile);
  if constexpr (kDrops) {
    dropped_score_gradients<owner>(gradients, weights, of.statistics, of.dropout, threshold);
    add_values();
  } else {
    score_gradients<owner>(gradients, weights, of.statistics);
  }
  as_operand(packed, gradients);
  gemm_nn<kDim>(sums.dx, packed, a_rows);
}

// Epilogue: stages the gradients in the shared memory of x and y, which are no longer needed.
template <Stationary owner, int kDim, bool kDrops>
__device__ inline void store_gradients(GradientSums<owner, kDim>& sums,
                                       const CtaState<owner, BackwardShape<owner, kDim>::kWarps>& cta,
                                       const PlainBackwardParams<Bf16>& p, int in_block, int part,
                                       unsigned char* memory) {
  using Sizes = BackwardSizes<owner, kDim, kDrops>;
  unsigned char* staging = memory + in_block * kPitch<kDim> + part * 2;
  float factor[Sizes::kTiles][2], kept[Sizes::kTiles][2];
  fill(factor, kDrops ? p.scale * p.dropout.scale : p.scale);
  fill(kept, 1.0f);
  write_rows<kDim>(sums.dx, factor, kept, staging, cta.out(p.dx, p.dx_parts, in_block, part, p.dim));
  if constexpr (owner == Stationary::kv) {
    fill(factor, kDrops ? p.dropout.scale : 1.0f);
    write_rows<kDim>(sums.dy, factor, kept, staging + Sizes::kOwn, cta.out(p.dy, p.dy_parts, in_block, part, p.dim));
  }
}

template <Stationary owner, int kDim, bool kDrops>
__global__ __launch_bounds__(
    BackwardSizes<owner, kDim, kDrops>::kThreads,
    BackwardShape<owner, kDim>::kBlocksPerProcessor) void mma_backward(const __grid_constant__ PlainBackwardParams<Bf16>
                                                                           p) {
  using Sizes = BackwardSizes<owner, kDim, kDrops>;
  constexpr bool kKeys = owner == Stationary::kv;
  constexpr int kM = Sizes::kTiles, kStream = Sizes::kStream, kThreads = Sizes::kThreads;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& cta = *reinterpret_cast<CtaState<owner, Sizes::kWarps>*>(memory + Sizes::kCtaState);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int in_block = warp % Sizes::kRowWarps * 16 * kM;      // first row of this warp
  const int part = warp / Sizes::kRowWarps * Sizes::kColumns;  // first column of this warp
  if (!cta.template open<Sizes::kRows, 16 * kM>(p.work, p.pass, p.group, kStream, in_block)) return;
  const HeadSegment& segment = cta.segment;
  unsigned char* stages = memory + 2 * Sizes::kOwn;
  const auto load_stage = [&](int turn, int column, int in_group) {
    const int head = cta.streamed_head + in_group;
    const std::int64_t row = cta.streamed_row(column);
    const Range exist = cta.streamed_range(column);
    unsigned char* stage = stages + turn * Sizes::kStage;
    load_tile<kDim, kStream, kThreads>(stage, p.a.at(row, head), p.a.row * segment.rate, exist, p.dim);
    load_tile<kDim, kStream, kThreads>(stage + Sizes::kTile, p.b.at(row, head), p.b.row * segment.rate, exist, p.dim);
    if constexpr (kKeys)
      load_statistics<kStream, kThreads>(stage + 2 * Sizes::kTile, p.lse2 + head * p.tokens + row,
                                         p.delta + head * p.tokens + row, segment.rate, exist);
    if constexpr (kKeys && kDrops)
      load_keys<kStream>(stage + 2 * Sizes::kTile + 8 * kStream, p.dropout.keys + head * p.tokens + row, segment.rate,
                         exist);
    cp_async_commit();
  };
  load_tile<kDim, Sizes::kRows, kThreads>(memory, p.x.at(cta.own_row(0), cta.head), p.x.row * segment.rate,
                                          cta.own_range(0), p.dim);
  load_tile<kDim, Sizes::kRows, kThreads>(memory + Sizes::kOwn, p.y.at(cta.own_row(0), cta.head),
                                          p.y.row * segment.rate, cta.own_range(0), p.dim);
  cp_async_commit();
  int cursor = cta.columns.cursor, next, next_states, in_group = 0;
  // Finds the next column block. If keys are stationary, restarts for each query head of the group.
  const auto find = [&] {
    if (cta.columns.next(cursor, next, next_states)) return true;
    if (!kKeys || ++in_group >= p.group) return false;
    cursor = cta.columns.cursor;
    return cta.columns.next(cursor, next, next_states);
  };
  bool more = find();
  if (more) load_stage(0, next, in_group);

  GradientSums<owner, kDim> sums;
  clear(sums.dx);
  clear(sums.dy);
  LaneNumbers<owner, kDim> numbers;
  const std::int64_t own = kKeys ? 0 : cta.head * p.tokens + cta.own_row(in_block);
  if constexpr (!kKeys) numbers.statistics.load(p.lse2 + own, p.delta + own, segment.rate, cta.own_range(in_block));
  if constexpr (kDrops)
    numbers.dropout.load(p.dropout.keys + own, segment, cta.row + in_block, cta.own_range(in_block));
  const std::uint32_t x = shared_address(memory) + in_block * kPitch<kDim> + rows_first<kDim>(lane);
  for (int turn = 0; more; turn ^= 1) {
    const int column = next, states = next_states;
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and the other stage has been read
    more = find();
    if (more) load_stage(turn ^ 1, next, in_group);
    const TileBounds seen = cta.reach[warp];
    const int row = cta.row + in_block;
    if (list_coverage(states, row / 64 % 2) == BlockCoverage::none || seen.none(column, kStream)) continue;
    unsigned char* stage = stages + turn * Sizes::kStage;
    const unsigned char* streamed = stage + 2 * Sizes::kTile;
    numbers.statistics.stage(reinterpret_cast<const float*>(streamed));
    if constexpr (kDrops)
      numbers.dropout.stage(segment, column, reinterpret_cast<const std::uint32_t*>(streamed + 8 * kStream));
    add_tile<owner, kDim, kDrops>(sums, numbers, segment, seen.all(column, kStream),
                                  {row, column, part, x, shared_address(stage)}, p.factor, p.dropout.threshold);
  }
  cp_async_wait<0>();
  __syncthreads();  // all warps have read x and y
  store_gradients<owner, kDim, kDrops>(sums, cta, p, in_block, part, memory);
}

template <Stationary owner, int kDim, bool kDrops>
void launch_mma_backward(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                         const ExecContext& ctx) {
  using Sizes = BackwardSizes<owner, kDim, kDrops>;
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads, dim = args.q.dim(2);
  const bool keys = owner == Stationary::kv;
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, owner, keys ? kv_heads : args.q.dim(1),
                    kv_heads, Sizes::kRows, keys ? 4 * dim * group : std::max<std::int64_t>(1, 4 * dim / group), ctx);
  const SplitParts parts(plan, args, ctx);
  launch(ctx, {grid_of(plan.blocks), Sizes::kThreads, Sizes::kBytes}, mma_backward<owner, kDim, kDrops>,
         plain_backward_params<Bf16, owner>(args, pass, statistics, plan, parts));
  parts.add_up(plan, args, ctx);
}

template <int kDim, bool kDrops>
void run_mma_backward(const AttentionBackward& args, const BranchPass& pass, Gradient which,
                      const RowStatistics& statistics, const ExecContext& ctx) {
  (which == Gradient::keys ? launch_mma_backward<Stationary::kv, kDim, kDrops>
                           : launch_mma_backward<Stationary::q, kDim, kDrops>)(args, pass, statistics, ctx);
}

}  // namespace ring::cuda

// The build instantiates the kernels of each head dim in a separate file (ring_attention_instances in
// cmake/rooms.cmake).
#define RING_INSTANTIATE(...)                                                                        \
  namespace ring::cuda {                                                                             \
  template void run_mma_backward<__VA_ARGS__>(const AttentionBackward&, const BranchPass&, Gradient, \
                                              const RowStatistics&, const ExecContext&);             \
  }
