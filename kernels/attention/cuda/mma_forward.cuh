#pragma once
// Tensor-core (mma.sync) forward, after FlashAttention-2 (Dao 2023): a thread block owns a block of queries and streams
// tiles of K and V through two stages of shared memory. Scores, P and accumulators stay in registers; P goes from the
// first GEMM to the second without leaving its lane.

#include "kernels/attention/cuda/mma_block.cuh"

namespace ring::cuda {

// Each warp owns 16 kTiles rows. With two tiles, every loaded fragment of K and V is used twice, so that shared-memory
// bandwidth does not limit the tensor cores. Heads of 256 leave no registers for that.
template <int kDim>
struct ForwardShape {
  static constexpr int kWarps = kDim <= 128 ? 4 : 8, kTiles = kDim <= 128 ? 2 : 1, kKeys = 64;
  static constexpr int kBlocksPerProcessor = kDim <= 128 ? 2 : 1;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kTiles * kWarps;
  static constexpr int kStage = 2 * kKeys * kPitch<kDim>;              // bytes of K and V
  static constexpr int kCtaState = kRows * kPitch<kDim> + 2 * kStage;  // byte offset of the CtaState
  static constexpr int kBytes = kCtaState + sizeof(CtaState<Stationary::q, kWarps>);
};

struct ForwardParams {
  HeadsOf<const Bf16> q, k, v;
  Output out;
  float* lse;
  std::int64_t tokens;
  int dim, group;  // group: query heads per KV head
  float factor;    // attention scale * log2(e)
  BranchPass pass;
  TileSchedule work;
  DropoutParams dropout;
};

// Running row max and row sum of a lane's rows. Until the end, `total` covers only this lane's columns.
template <int kM>
struct RowSums {
  float largest[kM][2], total[kM][2];
};

__device__ inline float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float over_quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Online softmax: converts scores to P relative to the new row max and rescales the accumulators.
template <int kM, int kN, int kC>
__device__ inline void softmax(float (&s)[kM][kN][4], float (&out)[kM][kC][4], RowSums<kM>& rows, float factor) {
  float rescale[kM][2];
  bool moved = false;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = rows.largest[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) best = fmaxf(best, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      best = over_quad_max(best);
      // Rounded products instead of an FMA: earlier accumulators are relative to the shift as it was rounded then.
      const float shift = best == -INFINITY ? 0.0f : __fmul_rn(best, factor);
      rescale[m][half] = fast_exp2(__fmul_rn(rows.largest[m][half], factor) - shift);
      moved |= best != rows.largest[m][half];
      rows.largest[m][half] = best;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) total += s[m][n][i] = fast_exp2(fmaf(s[m][n][i], factor, -shift));
      rows.total[m][half] = rows.total[m][half] * rescale[m][half] + total;
    }
  if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int c = 0; c < kC; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][c][i] *= rescale[m][i / 2];
}

// Sets dropped elements of P to 0.
template <int kM, int kN>
__device__ inline void drop(float (&s)[kM][kN][4], const LaneDropout<Stationary::q, kM, kN>& of,
                            std::uint32_t threshold) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (of.bits(m, n, i) < threshold) s[m][n][i] = 0.0f;
}

// Computes the factors that normalize the accumulators (scale) and the carry (kept), and writes the merged log-sum-exp.
// `lse` points to the warp's first row; rows are `stride` apart. On entry, it holds the carry's log-sum-exp if there is
// a carry.
template <int kM>
__device__ inline void finish(const RowSums<kM>& rows, float factor, float* lse, std::int64_t stride, const RowsOut& to,
                              float (&scale)[kM][2], float (&kept)[kM][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = over_quad_sum(rows.total[m][half]);
      const int row = m * 16 + half * 8 + lane / 4;
      const float own = total == 0.0f ? -INFINITY : (__fmul_rn(rows.largest[m][half], factor) + log2f(total)) * kLn2;
      const Merged both = merge(own, to.carry && to.exist.has(row) ? lse[row * stride] : -INFINITY);
      scale[m][half] = total == 0.0f ? 0.0f : both.own / total;
      kept[m][half] = both.before;
      __syncwarp();  // all lanes of the row have read the carry's lse
      if (lane % 4 == 0 && to.exist.has(row)) lse[row * stride] = both.lse;
    }
}

template <int kDim, bool kDrops>
__global__ __launch_bounds__(ForwardShape<kDim>::kThreads, ForwardShape<kDim>::kBlocksPerProcessor) void mma_forward(
    const __grid_constant__ ForwardParams p) {
  using Shape = ForwardShape<kDim>;
  constexpr int kM = Shape::kTiles, kKeys = Shape::kKeys;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& cta = *reinterpret_cast<CtaState<Stationary::q, Shape::kWarps>*>(memory + Shape::kCtaState);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int in_block = warp * 16 * kM;  // first row of this warp
  if (!cta.template open<Shape::kRows, 16 * kM>(p.work, p.pass, p.group, kKeys, in_block)) return;
  const HeadSegment& segment = cta.segment;
  unsigned char* stages = memory + Shape::kRows * kPitch<kDim>;
  const auto load_keys = [&](int turn, int key) {
    unsigned char* stage = stages + turn * Shape::kStage;
    const std::int64_t row = cta.streamed_row(key);
    const int head = cta.streamed_head;
    const Range exist = cta.streamed_range(key);
    load_tile<kDim, kKeys, Shape::kThreads>(stage, p.k.at(row, head), p.k.row * segment.rate, exist, p.dim);
    load_tile<kDim, kKeys, Shape::kThreads>(stage + kKeys * kPitch<kDim>, p.v.at(row, head), p.v.row * segment.rate,
                                            exist, p.dim);
    cp_async_commit();
  };
  load_tile<kDim, Shape::kRows, Shape::kThreads>(memory, p.q.at(cta.own_row(0), cta.head), p.q.row * segment.rate,
                                                 cta.own_range(0), p.dim);
  cp_async_commit();
  int cursor = cta.columns.cursor, next, next_states;
  bool more = cta.columns.next(cursor, next, next_states);
  if (more) load_keys(0, next);

  float out[kM][kDim / 8][4];
  RowSums<kM> rows;
  clear(out);
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    rows.largest[i / 2][i % 2] = -INFINITY;
    rows.total[i / 2][i % 2] = 0.0f;
  }
  LaneDropout<Stationary::q, kM, kKeys / 8> dropout;
  if constexpr (kDrops)
    dropout.load(p.dropout.keys + cta.head * p.tokens + cta.own_row(in_block), segment, 0, cta.own_range(in_block));
  const std::uint32_t own = shared_address(memory) + in_block * kPitch<kDim> + rows_first<kDim>(lane);
  for (int turn = 0; more; turn ^= 1) {
    const int key = next, states = next_states;
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and the other stage has been read
    more = cta.columns.next(cursor, next, next_states);
    if (more) load_keys(turn ^ 1, next);
    const TileBounds seen = cta.reach[warp];
    const int row = cta.row + in_block;
    if (list_coverage(states, row / 64 % 2) == BlockCoverage::none || seen.none(key, kKeys)) continue;
    const std::uint32_t stage = shared_address(stages) + turn * Shape::kStage;
    float s[kM][kKeys / 8][4];
    clear(s);
    gemm_nt<kDim>(s, own, stage + columns_first<kDim>(lane));
    if (!seen.all(key, kKeys)) mask_columns<Stationary::q>(s, segment, row, key);
    softmax(s, out, rows, p.factor);
    if constexpr (kDrops) {
      dropout.stage(segment, key, nullptr);
      drop(s, dropout, p.dropout.threshold);
    }
    std::uint32_t weights[kM][kKeys / 16][4];
    as_operand(weights, s);
    gemm_nn<kDim>(out, weights, stage + kKeys * kPitch<kDim> + rows_first<kDim>(lane));
  }

  cp_async_wait<0>();
  __syncthreads();  // the queries have been read: the output reuses their memory
  const RowsOut to = cta.out(p.out, nullptr, in_block, 0, p.dim);
  float* lse = p.lse + cta.head * p.tokens + cta.own_row(in_block);
  float scale[kM][2], kept[kM][2];
  finish(rows, p.factor, lse, segment.rate, to, scale, kept);
  if constexpr (kDrops) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) scale[i / 2][i % 2] *= p.dropout.scale;
  }
  write_rows<kDim>(out, scale, kept, memory + in_block * kPitch<kDim>, to);
}

template <int kDim, bool kDrops>
void run_mma_forward(const Attention& args, const BranchPass& pass, const Tensor& keys, const ExecContext& ctx) {
  using Shape = ForwardShape<kDim>;
  const std::int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), group = heads / kv_heads;
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, Stationary::q, heads, kv_heads,
                    Shape::kRows, std::max<std::int64_t>(1, 4 * args.q.dim(2) / group), ctx);
  const ForwardParams p{heads_of<const Bf16>(args.q),
                        heads_of<const Bf16>(args.k),
                        heads_of<const Bf16>(args.v),
                        output_of(args.out, args.carry),
                        args.lse.data<float>(),
                        args.q.dim(0),
                        static_cast<int>(args.q.dim(2)),
                        static_cast<int>(group),
                        args.scale * kLog2E,
                        pass,
                        plan.work,
                        dropout_params(args.dropout, keys)};
  launch(ctx, {grid_of(plan.blocks), Shape::kThreads, Shape::kBytes}, mma_forward<kDim, kDrops>, p);
}

}  // namespace ring::cuda

// The build instantiates the kernels of each head dim in a separate file (ring_attention_instances in
// cmake/rooms.cmake).
#define RING_INSTANTIATE(...)                                                                                         \
  namespace ring::cuda {                                                                                              \
  template void run_mma_forward<__VA_ARGS__>(const Attention&, const BranchPass&, const Tensor&, const ExecContext&); \
  }
