#pragma once
// Backward for Hopper. As in mma_backward.cuh, one kernel template computes either dk and dv, or dq. A thread block
// owns rows of two operands (x, y) and streams tiles of the other two (a, b). With S = scale x.a and dP = y.b for each
// pair, P = exp(S - lse) and dS = P (dP - delta):
//   owning keys:     x, y = k, v;     a, b = q, dout;   dk = scale sum dS a,  dv = sum P b
//   owning queries:  x, y = q, dout;  a, b = k, v;      dq = scale sum dS a
// S and dP are computed in both cases, so there are 7 GEMMs instead of 5. In return, nothing is accumulated across
// thread blocks, and results are bit-identical from run to run. With dropout, dP and the P of dv only keep the pairs
// that were not dropped (sm90_dropout.cuh). P and dS stay in registers between GEMMs.

#include "kernels/attention/cuda/sm90_backward_wide.cuh"

namespace ring::cuda::sm90 {

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
  PipelineState<Memory::kStagesOfB> b_pipe;
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
      if constexpr (Memory::kSplitB) wait_for_b();
      const int b_stage = Memory::kSplitB ? b_pipe.index : pipe.index;
      const StagedRows<kDim, kColumns> staged(consumer == 0 ? m.a[pipe.index] : m.b[b_stage], 16 * warp);
      write_gradient<merging>(dx, p.scale, p.dx, p.partial_dx, job, rows, p.dim, staged);
      if constexpr (kKeys)
        write_gradient<merging>(dy, drops ? p.dropout.scale : 1.0f, p.dy, p.partial_dy, job, rows, p.dim, staged);
      fence_proxy_async();
      if constexpr (Memory::kSplitB) release_b();
      release(m.empty[pipe.index]);
      pipe.advance();
    }
  }

  __device__ int in_block() const { return kGroupRows * consumer + 16 * warp; }  // the warp's first row in the block
  __device__ static void release(Barrier& empty) {
    __syncwarp();  // all lanes have finished reading
    if (lane() == 0) empty.arrive();
  }
  // wait_for_b() waits until b of the next tile is loaded, release_b() frees its stage. Only for b with its own stages.
  __device__ void wait_for_b() { m.b_full[b_pipe.index].wait(b_pipe.phase); }
  __device__ void release_b() {
    release(m.b_empty[b_pipe.index]);
    b_pipe.advance();
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
    if constexpr (Memory::kSplitB) wait_for_b();
    if constexpr (kOwnInRegisters)
      mm_ABt(dp, y, b);
    else
      mm_ABt(dp, row_block<kGroupRows>(m.y[own_pipe.index].view(), consumer), b);
    wgmma_commit();
  }

  template <bool masked>
  __device__ void next_tile(const Job<Memory::kConsumers>& job, int row) {
    const int stage = pipe.index;
    const auto a = stage_view(m.a, stage), b = stage_view(m.b, Memory::kSplitB ? b_pipe.index : stage);
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
    if constexpr (Memory::kSplitB) wait_for_b();  // b is loaded by now; called for its polling loop alone
    if constexpr (kOverlapTiles || !kKeys) wgmma_wait<0>();
    if constexpr (!kKeys) {
      fence_operand(dp);
      if constexpr (Memory::kSplitB) release_b();
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
    if constexpr (Memory::kSplitB) {
      wait_for_b();
      release_b();
    }
    release(m.empty[pipe.index]);
    pipe.advance();
    read_marks();
  }
};

template <Stationary owner, int kDim, bool merging, bool drops>
__global__ __launch_bounds__(threads_of(BackwardShape<owner, kDim>::kGroups),
                             1) void sm90_backward(const __grid_constant__ TmaBackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = BackwardMemory<owner, kDim>;
  static_assert(sizeof(Memory) + kAlignment <= 227 << 10);
  auto& m = aligned<Memory>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    setmaxnreg_dec<Memory::kProducerRegisters>();
    if (threadIdx.x < 32) BackwardProducer<owner, kDim, drops>{p, m}.run();
  } else {
    setmaxnreg_inc<Memory::kConsumerRegisters>();
    if constexpr (!Memory::kShareRows)
      BackwardConsumer<owner, kDim, merging, drops>(p, m, group - 1).run();
    else if (group == 1)
      KeyConsumer<kDim, merging, drops, true>(p, m).run();
    else
      KeyConsumer<kDim, merging, drops, false>(p, m).run();
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
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), threads_of(Memory::kGroups), sizeof(Memory) + kAlignment},
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
