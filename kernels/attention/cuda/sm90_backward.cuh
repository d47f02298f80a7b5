#pragma once
// Backward for Hopper. As in mma_backward.cuh, one kernel template computes either dk and dv, or dq. A thread block
// owns rows of two operands (x, y) and streams tiles of the other two (a, b). With S = scale x.a and dP = y.b for each
// pair, P = exp(S - lse) and dS = P (dP - delta):
//   owning keys:     x, y = k, v;     a, b = q, dout;   dk = scale sum dS a,  dv = sum P b
//   owning queries:  x, y = q, dout;  a, b = k, v;      dq = scale sum dS a
// S and dP are computed in both cases, so there are 7 GEMMs instead of 5. In return, nothing is accumulated across
// thread blocks, and results are bit-identical from run to run. With dropout, dP and the P of dv only keep the pairs
// that were not dropped (sm90_dropout.cuh). P and dS stay in registers between GEMMs.

#include "kernels/attention/cuda/sm90_backward_producer.cuh"

namespace ring::cuda::sm90 {

// lse and delta that a lane needs. If queries are stationary, these belong to the lane's two rows. Otherwise they
// belong to its columns, and are held in registers (in_registers) or read from shared memory at each use.
template <Stationary owner, int kColumns, bool in_registers>
struct LaneStatistics {
  static constexpr bool kOfRows = owner == Stationary::q;
  static constexpr int kCount = kOfRows ? 2 : in_registers ? kColumns / 4 : 1;
  float lse2_of[kCount], delta_of[kCount];
  const float *lse2_at, *delta_at;

  template <int kConsumers>
  __device__ void load_rows(const TmaBackwardParams& p, const Job<kConsumers>& job, int row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = row + 8 * half;
      const bool exists = j >= job.first && j < job.end;
      const std::int64_t at = job.head * p.tokens + job.segment.q_row + std::int64_t{j} * job.segment.rate;
      lse2_of[half] = exists ? p.lse2[at] : INFINITY;
      delta_of[half] = exists ? p.delta[at] : 0.0f;
    }
  }
  __device__ void load_lse2(const float* columns) { load_columns(lse2_of, lse2_at, columns); }
  __device__ void load_delta(const float* columns) { load_columns(delta_of, delta_at, columns); }
  // Return the values for a lane's four accumulator elements in the 8 columns from 8n on. With g = lane / 4 and
  // t = lane % 4, the elements are in rows g, g, g + 8, g + 8 and in columns 2t, 2t + 1, 2t, 2t + 1 of these 8.
  __device__ float4 lse2(int n) const { return spread(lse2_of, lse2_at, n); }
  __device__ float4 delta(int n) const { return spread(delta_of, delta_at, n); }

 private:
  __device__ static void load_columns(float (&to)[kCount], const float*& at, const float* columns) {
    at = columns + lane() % 4 * kLaneStatistics;
    if constexpr (in_registers)
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 c = *reinterpret_cast<const float4*>(at + i);
        to[i] = c.x, to[i + 1] = c.y, to[i + 2] = c.z, to[i + 3] = c.w;
      }
  }
  __device__ static float4 spread(const float (&of)[kCount], const float* at, int n) {
    if constexpr (kOfRows) return {of[0], of[0], of[1], of[1]};
    float2 c;
    if constexpr (in_registers)
      c = {of[2 * n], of[2 * n + 1]};
    else
      c = *reinterpret_cast<const float2*>(at + 2 * n);
    return {c.x, c.y, c.x, c.y};
  }
};

// Converts scores to P in place.
template <int kColumns, class Statistics>
__device__ inline void weights_of(Sums<kColumns>& s, const Statistics& of, float factor) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 l = of.lse2(n);
    s[4 * n] = fast_exp2(fmaf(s[4 * n], factor, -l.x)), s[4 * n + 1] = fast_exp2(fmaf(s[4 * n + 1], factor, -l.y));
    s[4 * n + 2] = fast_exp2(fmaf(s[4 * n + 2], factor, -l.z));
    s[4 * n + 3] = fast_exp2(fmaf(s[4 * n + 3], factor, -l.w));
  }
}
// Converts dP to dS = P (dP - delta) in place.
template <int kColumns, class Statistics>
__device__ inline void score_gradients(Sums<kColumns>& dp, const Sums<kColumns>& w, const Statistics& of) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 d = of.delta(n);
    dp[4 * n] = w[4 * n] * (dp[4 * n] - d.x), dp[4 * n + 1] = w[4 * n + 1] * (dp[4 * n + 1] - d.y);
    dp[4 * n + 2] = w[4 * n + 2] * (dp[4 * n + 2] - d.z), dp[4 * n + 3] = w[4 * n + 3] * (dp[4 * n + 3] - d.w);
  }
}

// Like score_gradients, with dropout: dropped elements of P are marked by a negative sign, and their dP counts as 0.
template <int kColumns, class Statistics>
__device__ inline void kept_score_gradients(Sums<kColumns>& dp, const Sums<kColumns>& w, const Statistics& of) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const float4 d = of.delta(n);
    const float delta[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
    for (int i = 4 * n; i < 4 * n + 4; ++i) dp[i] = fabsf(w[i]) * fmaf(is_positive(w[i]), dp[i], -delta[i % 4]);
  }
}

// Epilogue for a warp's 16 rows of a gradient. It rounds to bf16 and writes through shared memory. If `merging` (see
// is_merging), it writes directly to global memory: adds a carry, writes f32, or stores a part of a split list.
template <bool merging, int kDim, int kRows, int kConsumers>
__device__ inline void write_gradient(const Sums<kDim>& sums, float factor, const Output& whole, const Output& partial,
                                      const Job<kConsumers>& job, const WarpRows& rows, int dim,
                                      const StagedRows<kDim, kRows>& staged) {
  if constexpr (!merging) {
    staged.store(sums, {factor, factor});
    __syncwarp();
    staged.copy_out(whole, dim, rows);
    __syncwarp();
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.row(half);
      if (job.slot < 0)
        write_row<kDim>(sums, half, factor, 1.0f, whole, rows.token(row), rows.head, dim, rows.exists(row));
      else
        write_row<kDim>(sums, half, 1.0f, 0.0f, partial, std::int64_t{job.slot} * job.kRows + row - job.row, 0, dim,
                        rows.exists(row));
    }
  }
}

// Processes all tiles of a job. whole_loop: tiles without masked pairs run in a separate loop; set it if
// registers suffice for both loops.
template <bool whole_loop, class Consumer, class Job>
__device__ inline void take_tiles(Consumer& c, const Job& job, int row) {
  constexpr int kParts = Consumer::kParts;
  while (c.marks >= 0) {
    if constexpr (whole_loop)
      while (all_whole<kParts>(c.marks, c.consumer)) c.template next_tile<false>(job, row);
    if (c.marks < 0) break;
    if (any_wanted<kParts>(c.marks, c.consumer))
      c.template next_tile<true>(job, row);
    else
      c.pass_tile();
  }
}

// A consumer. Overlaps dP with the exponentials of S and, with kOverlapTiles, dx with S of the next tile.
template <Stationary owner, int kDim, bool merging, bool drops>
struct BackwardConsumer {
  using Memory = BackwardMemory<owner, kDim>;
  static constexpr bool kKeys = owner == Stationary::kv, kOwnInRegisters = Memory::kOwnInRegisters;
  static constexpr bool kOverlapTiles = Memory::kOverlapTiles;
  static constexpr int kColumns = Memory::kColumns, kParts = Memory::kParts;
  const TmaBackwardParams& p;
  Memory& m;
  const int consumer, warp;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  int marks = kNoTile, pending = -1;  // next tile's TileCoord::marks; pending: stage whose GEMMs are in flight, or -1
  Sums<kDim> dx;
  std::conditional_t<kKeys, Sums<kDim>, NoTile> dy;
  Sums<kColumns> s, dp;
  std::conditional_t<kKeys, OperandA<kColumns>, NoTile> w;
  OperandA<kColumns> g;
  std::conditional_t<kOwnInRegisters, OperandA<kDim>, NoTile> x, y;
  LaneStatistics<owner, kColumns, kOwnInRegisters> statistics;
  TileDropout<owner> dropout;

  __device__ BackwardConsumer(const TmaBackwardParams& p, Memory& m, int consumer)
      : p(p), m(m), consumer(consumer), warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)) {}

  __device__ void run() {
    for (int n = 0;; ++n) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      const Job<Memory::kConsumers>& job = m.jobs[n % Memory::kJobs];
      if (uniform(job.head) < 0) return;
      const int row = job.row + in_block() + lane() / 4;
      begin_job(job, row);
      take_tiles<kOverlapTiles>(*this, job, row);
      finish_tile();
      if constexpr (!kOwnInRegisters) release(m.own_empty[own_pipe.index]);
      own_pipe.advance();
      // The sentinel tile (marks < 0) has no data, so the epilogue stages its rows in the tile's buffers: consumer 0 in
      // a, consumer 1 in b.
      const WarpRows rows(job, job.row + in_block(), kKeys ? job.segment.k_row : job.segment.q_row);
      const StagedRows<kDim, kColumns> staged(consumer == 0 ? m.a[pipe.index] : m.b[pipe.index], 16 * warp);
      write_gradient<merging>(dx, p.scale, p.dx, p.partial_dx, job, rows, p.dim, staged);
      if constexpr (kKeys)
        write_gradient<merging>(dy, drops ? p.dropout.scale : 1.0f, p.dy, p.partial_dy, job, rows, p.dim, staged);
      fence_proxy_async();
      release(m.empty[pipe.index]);
      pipe.advance();
    }
  }

  __device__ int in_block() const { return kGroupRows * consumer + 16 * warp; }  // the warp's first row in the block
  __device__ static void release(Barrier& empty) {
    __syncwarp();  // all lanes have finished reading
    if (lane() == 0) empty.arrive();
  }
  // Waits until the tile of the next stage is loaded, and reads its TileCoord::marks.
  __device__ void read_marks() {
    m.full[pipe.index].wait(pipe.phase);
    marks = uniform(m.tiles[pipe.index].marks);
  }
  __device__ void begin_job(const Job<Memory::kConsumers>& job, int row) {
    clear(dx);
    if constexpr (kKeys)
      clear(dy);
    else
      statistics.load_rows(p, job, row);
    if constexpr (drops) dropout.load_rows(p.dropout, p.tokens, job, job.row + in_block());
    if constexpr (kOwnInRegisters) {
      load_own(x, m.x[0].view());
      load_own(y, m.y[0].view());
      fence_proxy_async();
      release(m.own_empty[0]);
    }
    read_marks();
  }
  // Loads the warp's rows of a tile as A-operand fragments.
  __device__ void load_own(OperandA<kDim>& to, SmemView<Bf16, Memory::kRows, kDim, Swizzle::b128> tile) const {
    const int row = in_block() + lane() % 16;
#pragma unroll
    for (int k = 0; k < to.kSteps; ++k) ldmatrix(to.data[k], tile.address + tile.offset(0, row, 2 * k + lane() / 16));
    fence_operand(to);
  }

  // Issues S and dP, the two GEMMs that P and dS of a tile depend on.
  template <class View>
  __device__ void queue_products(View a, View b) {
    wgmma_fence();
    if constexpr (kOwnInRegisters)
      mm_ABt(s, x, a);
    else
      mm_ABt(s, row_block<kGroupRows>(m.x[own_pipe.index].view(), consumer), a);
    wgmma_commit();
    if constexpr (kOwnInRegisters)
      mm_ABt(dp, y, b);
    else
      mm_ABt(dp, row_block<kGroupRows>(m.y[own_pipe.index].view(), consumer), b);
    wgmma_commit();
  }

  template <bool masked>
  __device__ void next_tile(const Job<Memory::kConsumers>& job, int row) {
    const int stage = pipe.index;
    const auto a = stage_view(m.a, stage), b = stage_view(m.b, stage);
    queue_products(a, b);
    if constexpr (drops) dropout.use(m.dropout_keys[stage]);
    if constexpr (kOwnInRegisters) statistics.load_lse2(m.lse2[stage]);
    wgmma_wait<1>();
    if constexpr (kOverlapTiles) {
      products_added();
      pending = stage;
    }
    fence_operand(s);
    if constexpr (kKeys && !kOwnInRegisters) statistics.load_lse2(m.lse2[stage]);
    if (masked && !all_whole<kParts>(marks, consumer)) {
      TileCoord tile = m.tiles[stage];
      tile.marks = marks;
      mask_rows<owner, kParts>(s, job.segment, tile, row, consumer);
    }
    weights_of(s, statistics, p.factor);
    if constexpr (drops) mark_dropped(s, dropout, p.dropout.threshold);
    pipe.advance();
    if constexpr (kKeys) {
      take_weights();
      if constexpr (kOwnInRegisters) statistics.load_delta(m.delta[stage]);
      wgmma_fence();
      mma_AB(dy, w, b);
      wgmma_commit();
      wgmma_wait<1>();
      fence_operand(dp);
      if constexpr (!kOwnInRegisters) statistics.load_delta(m.delta[stage]);
      take_gradients();
    }
    // read_marks() polls an mbarrier. Its loop keeps the compiler from moving the next GEMM wait ahead of the
    // exponentials.
    if constexpr (kOverlapTiles) read_marks();
    if constexpr (kOverlapTiles || !kKeys) wgmma_wait<0>();
    if constexpr (!kKeys) {
      fence_operand(dp);
      take_gradients();
    }
    as_fragments(g, dp);
    wgmma_fence();
    mma_AB(dx, g, a);
    wgmma_commit();
    if constexpr (!kOverlapTiles) {
      wgmma_wait<0>();
      fence_operand(dx);
      if constexpr (kKeys) fence_operand(dy);
      release(m.empty[stage]);
      read_marks();
    }
  }
  // Converts P to bf16 fragments. With dropout, dropped elements become 0.
  __device__ void take_weights() {
    if constexpr (drops)
      as_kept_fragments(w, s);
    else
      as_fragments(w, s);
  }
  // Converts dP to dS in place.
  __device__ void take_gradients() {
    if constexpr (drops)
      kept_score_gradients(dp, s, statistics);
    else
      score_gradients(dp, s, statistics);
  }
  // Frees the stage of the pending tile. Call once its GEMMs have completed.
  __device__ void products_added() {
    fence_operand(dx);
    if constexpr (kKeys) fence_operand(dy);
    if (pending >= 0) release(m.empty[pending]);
  }
  // Waits for the GEMMs of the pending tile and frees its stage.
  __device__ void finish_tile() {
    if constexpr (!kOverlapTiles) return;
    wgmma_wait<0>();
    products_added();
    pending = -1;
  }
  // Skips a tile in which this consumer has no unmasked pairs.
  __device__ void pass_tile() {
    finish_tile();
    release(m.empty[pipe.index]);
    pipe.advance();
    read_marks();
  }
};

template <Stationary owner, int kDim, bool merging, bool drops>
__global__ __launch_bounds__(threads_of(BackwardShape<owner, kDim>::kConsumers),
                             1) void sm90_backward(const __grid_constant__ TmaBackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = BackwardMemory<owner, kDim>;
  auto& m = aligned<Memory>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    setmaxnreg_dec<Memory::kProducerRegisters>();
    if (threadIdx.x < 32) BackwardProducer<owner, kDim, drops>{p, m}.run();
  } else {
    setmaxnreg_inc<Memory::kConsumerRegisters>();
    BackwardConsumer<owner, kDim, merging, drops>(p, m, group - 1).run();
  }
#else
  __trap();  // compiled for a different architecture; supports() rejects such devices
#endif
}

// Partial sums of dk and dv, for block lists that are split among thread blocks (lists.h). Empty if no list is split.
class CutGradients {
 public:
  CutGradients(const SchedulePlan& plan, const AttentionBackward& args, TmaBackwardParams& p, const ExecContext& ctx)
      : parts_(plan, args, ctx) {
    if (!parts_.dk.defined()) return;
    p.partial_dx.whole = {parts_.dk.data<float>(), args.q.dim(2), 0};
    p.partial_dy.whole = {parts_.dv.data<float>(), args.q.dim(2), 0};
  }
  void add_up(const SchedulePlan& plan, const AttentionBackward& args, const ExecContext& ctx) const {
    if (!parts_.dk.defined()) return;
    const float kept = 1 / (1 - args.dropout.rate);
    add_splits(plan.lists, plan.work.pieces, {parts_.dk, args.dk, args.carry_dk, args.scale * kept}, ctx);
    add_splits(plan.lists, plan.work.pieces, {parts_.dv, args.dv, args.carry_dv, kept}, ctx);
  }

 private:
  SplitParts parts_;
};

template <Stationary owner, int kDim, bool drops>
void run_backward(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                  const ExecContext& ctx) {
  using Memory = BackwardMemory<owner, kDim>;
  constexpr bool kKeys = owner == Stationary::kv;
  const std::int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), group = heads / kv_heads, dim = args.q.dim(2);
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, owner, kKeys ? kv_heads : heads,
                    kv_heads, Memory::kRows, std::max<std::int64_t>(1, kKeys ? 4 * dim * group : 4 * dim / group), ctx);
  if (plan.blocks == 0) return;
  TmaBackwardParams p = tma_backward_params<owner>(args, pass, statistics, plan);
  const CutGradients cut(plan, args, p, ctx);  // empty if queries are stationary: their lists are never split
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), threads_of(Memory::kConsumers), sizeof(Memory) + kAlignment},
         is_merging(p) ? sm90_backward<owner, kDim, true, drops> : sm90_backward<owner, kDim, false, drops>, p);
  cut.add_up(plan, args, ctx);
}

}  // namespace ring::cuda::sm90

// The build instantiates the kernels of each head dim in a separate file (ring_attention_instances in
// cmake/rooms.cmake).
#define RING_INSTANTIATE(...)                                                                                \
  namespace ring::cuda::sm90 {                                                                               \
  template void run_backward<__VA_ARGS__>(const AttentionBackward&, const BranchPass&, const RowStatistics&, \
                                          const ExecContext&);                                               \
  }
