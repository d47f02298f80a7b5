#pragma once
// Backward for Hopper in one kernel, with 5 GEMMs instead of the 7 of sm90_backward.cuh. A thread block owns keys and
// values, streams queries, and accumulates dq in global memory. With S = scale q.k and dP = dout.v for each pair,
// P = exp(S - lse) and dS = P (dP - delta):
//   dk = scale sum dS q,  dv = sum P dout,  dq = scale sum dS k
// With dropout, dP and the P of dv only keep the pairs that were not dropped (sm90_dropout.cuh).
// Two consumers own 64 keys each. If registers suffice, a third one computes dq of each tile from the dS of both, which
// it reads from shared memory, so that the two never wait for each other.
// In deterministic mode, blocks of keys add to a tile of dq in ascending order, each after its predecessor
// (query_sums.h). There is no deadlock, because a thread block only waits for blocks that were fetched before its own.
// Otherwise blocks only wait for the first one, which stores instead of adding.

#include "kernels/attention/cuda/sm90_backward.cuh"
#include "kernels/attention/cuda/sm90_fused_queries.cuh"

namespace ring::cuda::sm90 {

template <int kDim, bool merging, bool drops>
struct FusedConsumer {
  using Memory = FusedMemory<kDim>;
  using KeyJob = Job<Memory::kConsumers>;
  using QueryView = SmemView<Bf16, Memory::kColumns, kDim, Swizzle::b128>;
  static constexpr bool kThird = Memory::kThird;
  static constexpr int kColumns = Memory::kColumns, kParts = Memory::kParts;
  const FusedParams& p;
  Memory& m;
  const int consumer, warp;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<Memory::kGradStages> ds_pipe;
  int marks = kNoTile, pending = -1;  // next tile's TileCoord::marks; pending: stage whose dS is not handed over, or -1
  Sums<kDim> dk, dv;
  // dq of the previous tile. A member, because ptxas serialises all WGMMAs (C7512) if it is a local variable.
  std::conditional_t<kThird, NoTile, Sums<kSumColumns>> dq;
  Sums<kColumns> s, dp;
  OperandA<kColumns> w, g;
  LaneStatistics<Stationary::kv, kColumns, false> statistics;
  std::conditional_t<kThird, TileDropout<Stationary::kv>, ShuffledDropout> dropout;
  QueryColumns<kDim> columns{m, consumer};

  __device__ FusedConsumer(const FusedParams& p, Memory& m, int consumer)
      : p(p), m(m), consumer(consumer), warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)) {}

  __device__ void run() {
    for (int n = 0;; ++n) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      const KeyJob& job = m.jobs[n % Memory::kJobs];
      if (uniform(job.head) < 0) break;
      const int row = job.row + own_row() + thread_again() % 32 / 4;
      clear(dk);
      clear(dv);
      if constexpr (drops) dropout.load_rows(p.dropout, p.tokens, job, job.row + in_block());
      read_marks();
      take_tiles<true>(*this, job, row);
      finish_job(job);
    }
    if constexpr (!kThird) columns.end();
  }

  __device__ int in_block() const { return kGroupRows * consumer + 16 * warp; }  // the warp's first row in the block
  // Returns the same as in_block(). Used at the start and the end of a job, for the reason that thread_again() gives.
  __device__ static int own_row() { return 16 * (thread_again() / 32 - kGroupWarps); }
  // Waits until the tile of the next stage is loaded, and reads its TileCoord::marks.
  __device__ void read_marks() {
    m.full[pipe.index].wait(pipe.phase);
    marks = uniform(m.tiles[pipe.index].marks);
  }
  template <bool masked>
  __device__ void next_tile(const KeyJob& job, int row) {
    const int stage = pipe.index, before = pending;
    const auto a = stage_view(m.a, stage), b = stage_view(m.b, stage);
    wgmma_fence();
    mm_ABt(s, row_block<kGroupRows>(m.x[own_pipe.index].view(), consumer), a);
    wgmma_commit();
    mm_ABt(dp, row_block<kGroupRows>(m.y[own_pipe.index].view(), consumer), b);
    wgmma_commit();
    if constexpr (drops && kThird) dropout.use(m.dropout_keys[stage]);
    if constexpr (drops && !kThird) dropout.load_columns(p.dropout, p.tokens, job.segment, m.tiles[stage]);
    if constexpr (kThird)
      if (pending >= 0) hand_over();  // its proxy fence overlaps with the GEMMs of S and dP
    statistics.load_lse2(m.lse2[stage]);
    wgmma_wait<1>();
    if constexpr (kThird) products_added(pending);
    pending = stage;
    fence_operand(s);
    if (masked && !all_whole<1>(marks, consumer)) mask(job, row, m.tiles[stage]);
    take_weights();
    pipe.advance();
    wgmma_fence();
    mma_AB(dv, w, b);
    wgmma_commit();
    statistics.load_delta(m.delta[stage]);
    wgmma_wait<1>();
    fence_operand(dp);
    take_gradients();
    store_score_gradients();
    if constexpr (kThird)
      add_keys(a);
    else
      add_keys_and_queries(a, before);
  }
  // Converts scores to P and its bf16 fragments.
  __device__ void take_weights() {
    weights_of(s, statistics, p.factor);
    if constexpr (drops) {
      mark_dropped(s, dropout, p.dropout.threshold);
      as_kept_fragments(w, s);
    } else {
      as_fragments(w, s);
    }
  }
  // Converts dP to dS and its bf16 fragments.
  __device__ void take_gradients() {
    if constexpr (drops)
      kept_score_gradients(dp, s, statistics);
    else
      score_gradients(dp, s, statistics);
    as_fragments(g, dp);
  }
  // Issues dk, which overlaps with S and dP of the next tile.
  __device__ void add_keys(QueryView a) {
    read_marks();  // its polling loop keeps the compiler from moving the next wait ahead of the exponentials
    wgmma_wait<0>();
    wgmma_fence();
    mma_AB(dk, g, a);
    wgmma_commit();
  }
  // Issues the GEMMs of the previous tile's dq and of this tile's dk. The GEMM of dk overlaps with the copy of dq to
  // shared memory.
  __device__ void add_keys_and_queries(QueryView a, int before) {
    if (before >= 0) columns.wait();
    // Runs at a job's first tile too, although its result is unused there: a branch would cost registers.
    columns.queue(dq, m.x[own_pipe.index].view());
    mma_AB(dk, g, a);
    wgmma_commit();
    hand_over();  // its proxy fence overlaps with the GEMMs of dq and dk
    wgmma_wait<1>();
    if (before >= 0) columns.store(dq);
    wgmma_wait<0>();
    products_added(pending);
    read_marks();
  }
  // Masks scores. Also masks rows that are out of range: unlike their dk and dv, their
  // contribution to dq is not discarded.
  __device__ void mask(const KeyJob& job, int row, TileCoord tile) {
    tile.marks = marks;
    mask_rows<Stationary::kv, 1>(s, job.segment, tile, row, consumer);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= job.first && row + 8 * half < job.end) continue;
#pragma unroll
      for (int i = 0; i < s.kElements; ++i)
        if (i / 2 % 2 == half) s[i] = -INFINITY;
    }
  }
  // Writes dS to shared memory in TMA's 128-byte swizzle; rows are keys.
  __device__ void store_score_gradients() {
    const int row = in_block() + lane() % 16;
    m.ds_empty[ds_pipe.index].wait(ds_pipe.phase ^ 1);
#pragma unroll
    for (int i = 0; i < g.kSteps; ++i) stmatrix(m.ds[ds_pipe.index].view().chunk(row, 2 * i + lane() / 16), g.data[i]);
  }
  // Hands dS over to the consumers that compute dq, and a dq in shared memory to the thread that adds it to global
  // memory. Includes the proxy fence that both need.
  __device__ void hand_over() {
    fence_proxy_async();
    release(m.ds_full[ds_pipe.index]);
    ds_pipe.advance();
    if constexpr (!kThird) columns.hand_over();
  }
  // Frees the stage of a tile; does nothing if `stage` is negative. Call once the tile's GEMMs have completed.
  __device__ void products_added(int stage) {
    fence_operand(dk);
    fence_operand(dv);
    if (stage >= 0) release(m.empty[stage]);
  }
  __device__ void finish_tile() {
    if (pending >= 0) hand_over();
    wgmma_wait<0>();
    products_added(pending);
    pending = -1;
  }
  // Skips a tile in which this consumer has no unmasked pairs.
  __device__ void pass_tile() {
    if constexpr (kThird) {
      finish_tile();
      m.ds_empty[ds_pipe.index].wait(ds_pipe.phase ^ 1);
      release(m.ds_full[ds_pipe.index]);
      ds_pipe.advance();
    } else {
      if (finish_dq()) columns.store(dq);
      clear(g);
      store_score_gradients();
      hand_over();
      pending = pipe.index;
    }
    release(m.empty[pipe.index]);
    pipe.advance();
    read_marks();
  }
  // Computes dq of the pending tile. Returns false if no tile is pending.
  __device__ bool finish_dq() {
    if (pending < 0) return false;
    pending = -1;
    columns.wait();
    columns.queue(dq, m.x[own_pipe.index].view());
    columns.give();
    wgmma_wait<0>();
    return true;
  }
  // Epilogue: writes dk and dv.
  __device__ void finish_job(const KeyJob& job) {
    bool more = false;
    if constexpr (kThird)
      finish_tile();
    else
      more = finish_dq();
    release(m.own_empty[own_pipe.index]);
    own_pipe.advance();
    // The sentinel tile (marks < 0) has no data, so the epilogue stages its rows in the tile's buffers: consumer 0 in
    // a, consumer 1 in b.
    const int first = own_row();
    const WarpRows rows(job, job.row + first, job.segment.k_row);
    const StagedRows<kDim, kColumns> staged(first < kGroupRows ? m.a[pipe.index] : m.b[pipe.index], first % kGroupRows);
    write_gradient<merging>(dk, p.scale, p.dx, p.partial_dx, job, rows, p.dim, staged);
    write_gradient<merging>(dv, drops ? p.dropout.scale : 1.0f, p.dy, p.partial_dy, job, rows, p.dim, staged);
    fence_proxy_async();
    release(m.empty[pipe.index]);
    pipe.advance();
    if constexpr (!kThird) {
      if (!more) return;
      columns.store(dq);
      columns.give();
    }
  }
};

template <int kDim, bool merging, bool drops>
__global__ __launch_bounds__(FusedMemory<kDim>::kThreads, 1) void sm90_fused(const __grid_constant__ FusedParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = FusedMemory<kDim>;
  static_assert(sizeof(Memory) + kAlignment <= 227 << 10);
  auto& m = aligned<Memory>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup), warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (group == 0) {
    setmaxnreg_dec<Memory::kProducerRegisters>();
    if (warp == 0)
      FusedProducer<kDim, drops>{p, m}.run();
    else if (lane() == 0 && warp <= Memory::kSumThreads)
      add_queries<kDim>(p, m, warp - 1);
    else if (threadIdx.x == kGroup - 1)
      for (const TensorMap* map : {&p.x, &p.y, &p.a, &p.b}) prefetch_descriptor(map->map);
  } else if (!Memory::kThird || group <= Memory::kConsumers) {
    setmaxnreg_inc<Memory::kConsumerRegisters>();
    FusedConsumer<kDim, merging, drops>(p, m, group - 1).run();
  } else if constexpr (Memory::kThird) {
    setmaxnreg_dec<Memory::kSumRegisters>();
    QueryConsumer<kDim>{m}.run();
  }
#else
  __trap();  // compiled for a different architecture; supports() rejects such devices
#endif
}

template <int kDim, bool drops>
void run_fused(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
               const ExecContext& ctx) {
  using Memory = FusedMemory<kDim>;
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads;
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, args.selection, Stationary::kv, kv_heads, kv_heads,
                    Memory::kRows, 8 * kDim * group, ctx, BlockOrder::ascending);
  const QuerySums sums(args, pass.listed, ctx);
  if (plan.blocks > 0) {
    FusedParams p{tma_backward_params<Stationary::kv>(args, pass, statistics, plan), sums.sums_data(),
                  sums.turns_data(), static_cast<int>(args.q.dim(0) / pass.rate), ctx.deterministic && !pass.listed};
    const CutGradients cut(plan, args, p, ctx);
    launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), Memory::kThreads, sizeof(Memory) + kAlignment},
           is_merging(p) ? sm90_fused<kDim, true, drops> : sm90_fused<kDim, false, drops>, p);
    cut.add_up(plan, args, ctx);
  }
  sums.write_dq(args, pass, ctx);
}

}  // namespace ring::cuda::sm90

// The build instantiates the kernels of each head dim in a separate file (ring_attention_instances in
// cmake/rooms.cmake).
#define RING_INSTANTIATE(...)                                                                             \
  namespace ring::cuda::sm90 {                                                                            \
  template void run_fused<__VA_ARGS__>(const AttentionBackward&, const BranchPass&, const RowStatistics&, \
                                       const ExecContext&);                                               \
  }
