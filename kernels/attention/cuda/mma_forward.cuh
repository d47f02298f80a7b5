#pragma once
// The forward on tensor cores, after FlashAttention-2 (Dao 2023): a thread block owns a block of queries and streams
// tiles of keys and values through two stages of shared memory; scores, weights and sums stay in registers, and a
// weight goes from the first product to the second without leaving its lane.

#include "kernels/attention/cuda/tile.cuh"
#include "kernels/attention/cuda/work.cuh"

namespace ring::cuda {

// Each warp owns 16 kTiles rows: with two tiles every fragment of keys and values that it loads serves twice, which
// keeps shared memory below the tensor cores. Heads of 256 leave no registers for that.
template <int kDim>
struct ForwardShape {
  static constexpr int kWarps = kDim <= 128 ? 4 : 8, kTiles = kDim <= 128 ? 2 : 1, kKeys = 64;
  static constexpr int kBlocksPerProcessor = kDim <= 128 ? 2 : 1;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kTiles * kWarps;
  static constexpr int kStage = 2 * kKeys * kPitch<kDim>;  // bytes of keys and values
  static constexpr int kBytes = kRows * kPitch<kDim> + 2 * kStage;
};

struct ForwardParams {
  HeadsOf<const Bf16> q, k, v;
  HeadsOf<Bf16> out;
  float* lse;
  std::int64_t tokens;
  int dim, group;  // group: query heads per KV head
  float factor;    // from a product to a power of two
  bool causal;
  Work work;
};

// Scores of keys that a row does not see become -inf. first_row, first_key: of the warp's tile, within the sequence.
template <int kM, int kN>
__device__ inline void mask_keys(float (&s)[kM][kN][4], int first_row, int first_key, int length, bool causal) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + lane / 4, end = causal ? min(row + 1, length) : length;
      const int seen = end - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        if (n * 8 >= seen) s[m][n][2 * half] = -INFINITY;
        if (n * 8 + 1 >= seen) s[m][n][2 * half + 1] = -INFINITY;
      }
    }
}

// The largest score and the sum of weights of a lane's rows; the sum is of this lane's columns only until the end.
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

// Scores become weights relative to the largest score so far; what was summed before is rescaled to it.
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
      // Rounded as products, not fused: earlier sums are relative to the shift as it was rounded then.
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

// Factors that turn the sums into outputs; writes the log-sum-exp.
template <int kM>
__device__ inline void finish(const RowSums<kM>& rows, float factor, float* lse, int count, float (&scale)[kM][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = over_quad_sum(rows.total[m][half]);
      const int row = m * 16 + half * 8 + lane / 4;
      scale[m][half] = total == 0.0f ? 0.0f : 1.0f / total;
      if (lane % 4 == 0 && row < count)
        lse[row] = total == 0.0f ? -INFINITY : (__fmul_rn(rows.largest[m][half], factor) + log2f(total)) * kLn2;
    }
}

template <int kDim>
__global__ __launch_bounds__(ForwardShape<kDim>::kThreads, ForwardShape<kDim>::kBlocksPerProcessor) void mma_forward(
    const __grid_constant__ ForwardParams p) {
  using Shape = ForwardShape<kDim>;
  constexpr int kM = Shape::kTiles, kKeys = Shape::kKeys;
  extern __shared__ __align__(16) unsigned char memory[];
  const Work::Place at = p.work[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = at.row + warp * 16 * kM;  // first of this warp
  const int end = p.causal ? min(at.length, at.row + Shape::kRows) : at.length, tiles = (end + kKeys - 1) / kKeys;
  const Bf16 *k = p.k.at(at.start, at.head / p.group), *v = p.v.at(at.start, at.head / p.group);
  unsigned char* stages = memory + Shape::kRows * kPitch<kDim>;
  const auto load_keys = [&](int tile) {
    unsigned char* stage = stages + tile % 2 * Shape::kStage;
    const std::int64_t key = std::int64_t{tile} * kKeys;
    const int rows = at.length - tile * kKeys;
    load_tile<kDim, kKeys, Shape::kThreads>(stage, k + key * p.k.row, static_cast<int>(p.k.row), rows, p.dim);
    load_tile<kDim, kKeys, Shape::kThreads>(stage + kKeys * kPitch<kDim>, v + key * p.v.row, static_cast<int>(p.v.row),
                                            rows, p.dim);
    end_copies();
  };
  load_tile<kDim, Shape::kRows, Shape::kThreads>(memory, p.q.at(at.start + at.row, at.head), static_cast<int>(p.q.row),
                                                 at.length - at.row, p.dim);
  load_keys(0);

  float out[kM][kDim / 8][4];
  RowSums<kM> rows;
  clear(out);
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    rows.largest[i / 2][i % 2] = -INFINITY;
    rows.total[i / 2][i % 2] = 0.0f;
  }
  const std::uint32_t own = shared_address(memory) + warp * 16 * kM * kPitch<kDim> + rows_first<kDim>(lane);
  for (int tile = 0; tile < tiles; ++tile) {
    await_copies<0>();
    __syncthreads();  // the tile is there, and the other stage has been read
    if (tile + 1 < tiles) load_keys(tile + 1);
    const int key = tile * kKeys;
    if (p.causal && key > row + 16 * kM - 1) continue;  // none of this warp's rows sees it
    const std::uint32_t stage = shared_address(stages) + tile % 2 * Shape::kStage;
    float s[kM][kKeys / 8][4];
    clear(s);
    multiply_rows<kDim>(s, own, stage + columns_first<kDim>(lane));
    if (key + kKeys > (p.causal ? min(row + 1, at.length) : at.length)) mask_keys(s, row, key, at.length, p.causal);
    softmax(s, out, rows, p.factor);
    std::uint32_t weights[kM][kKeys / 16][4];
    as_operand(weights, s);
    multiply_packed<kDim>(out, weights, stage + kKeys * kPitch<kDim> + rows_first<kDim>(lane));
  }

  __syncthreads();  // the queries have been read: outputs take their place
  if (row >= at.length) return;
  float scale[kM][2];
  finish(rows, p.factor, p.lse + at.head * p.tokens + at.start + row, at.length - row, scale);
  store_rows<kDim>(out, scale, memory + warp * 16 * kM * kPitch<kDim>, p.out.at(at.start + row, at.head), p.out.row,
                   at.length - row, p.dim);
}

template <int kDim>
void run_mma_forward(const Attention& args, const Context& ctx) {
  using Shape = ForwardShape<kDim>;
  check(args);
  fill_outside(args, ctx);
  const int heads = static_cast<int>(args.q.dim(1)), group = heads / static_cast<int>(args.k.dim(1));
  const BlockPlan plan = plan_blocks(args.offsets, Owner::queries, heads, Shape::kRows, args.causal,
                                     std::max<std::int64_t>(1, 4 * args.q.dim(2) / group), ctx);
  const ForwardParams p{heads_of<const Bf16>(args.q),
                        heads_of<const Bf16>(args.k),
                        heads_of<const Bf16>(args.v),
                        heads_of<Bf16>(args.out),
                        args.lse.data<float>(),
                        args.q.dim(0),
                        static_cast<int>(args.q.dim(2)),
                        group,
                        args.scale * kLog2E,
                        args.causal,
                        plan.work};
  launch(ctx, {grid_of(plan.blocks), Shape::kThreads, Shape::kBytes}, mma_forward<kDim>, p);
}

}  // namespace ring::cuda
