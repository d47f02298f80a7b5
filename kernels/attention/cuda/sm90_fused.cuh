#pragma once
// The backward for Hopper in one kernel, with 5 products instead of the 7 of sm90_backward.cuh: a block owns keys and
// values, streams queries, and adds what it has for dq to sums in global memory. With S = scale q.k and dP = dout.v for
// each pair, P = exp(S - lse) and dS = P (dP - delta):
//   dk = scale sum dS q,  dv = sum P dout,  dq = scale sum dS k
// Two consumers have 64 keys each; a third one makes dq of each tile from the dS of both, which it reads from shared
// memory, so that the two need not meet. Blocks of keys add to a tile of queries in ascending order, each when the one
// before has done so (query_sums.h): the bits repeat. A block waits only for blocks that were fetched before it.

#include "kernels/attention/cuda/sm90_backward.cuh"
#include "kernels/attention/cuda/sm90_fused_producer.cuh"

namespace ring::cuda::sm90 {

template <int kDim>
struct FusedConsumer {
  using Memory = FusedMemory<kDim>;
  using KeyJob = Job<Memory::kConsumers>;
  static constexpr int kColumns = Memory::kColumns;
  const FusedParams& p;
  Memory& m;
  const int consumer, warp;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<Memory::kGradStages> ds_pipe;
  int marks = kNoTile, pending = -1;  // of the next tile; the stage of the one whose products are under way
  float dk[kDim / 2], dv[kDim / 2], s[kColumns / 2], dp[kColumns / 2];
  std::uint32_t w[kColumns / 16][4], g[kColumns / 16][4];
  LaneStatistics<Stationary::kv, kColumns, false> statistics;

  __device__ FusedConsumer(const FusedParams& p, Memory& m, int consumer)
      : p(p), m(m), consumer(consumer), warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)) {}

  __device__ void run() {
    for (int n = 0;; ++n) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      const KeyJob& job = m.jobs[n % Memory::kJobs];
      if (uniform(job.head) < 0) return;
      const int row = job.row + in_block() + lane() / 4;
      clear(dk);
      clear(dv);
      read_marks();
      while (marks >= 0) {  // tiles of which every pair counts have a loop of their own
        while (all_whole<1>(marks, consumer)) next_tile<false>(job, row);
        if (marks < 0) break;
        if (any_wanted<1>(marks, consumer))
          next_tile<true>(job, row);
        else
          pass_tile();
      }
      finish_tile();
      release(m.empty[pipe.index]);  // that there is no more
      pipe.advance();
      release(m.own_empty[own_pipe.index]);
      own_pipe.advance();
      write_gradient<kDim>(dk, p.scale, p.dx, p.partial_dx, job, row, job.segment.k_row, p.dim);
      write_gradient<kDim>(dv, 1.0f, p.dy, p.partial_dy, job, row, job.segment.k_row, p.dim);
    }
  }

 private:
  __device__ int in_block() const { return kGroupRows * consumer + 16 * warp; }  // the warp's first row
  __device__ void read_marks() {
    m.full[pipe.index].wait(pipe.phase);
    marks = uniform(m.tiles[pipe.index].marks);
  }
  __device__ std::uint32_t own(const unsigned char* tile) const {
    return shared_address(tile) + panel_bytes(kGroupRows) * consumer;
  }
  template <bool masked>
  __device__ void next_tile(const KeyJob& job, int row) {
    const int stage = pipe.index;
    const std::uint32_t a = shared_address(m.a) + stage * Memory::kTile;
    const std::uint32_t b = shared_address(m.b) + stage * Memory::kTile;
    wgmma_fence();
    gemm_ss<kDim>(s, own(m.x[own_pipe.index]), Memory::kRows, a, kColumns);
    wgmma_commit();
    gemm_ss<kDim>(dp, own(m.y[own_pipe.index]), Memory::kRows, b, kColumns);
    wgmma_commit();
    if (pending >= 0) hand_over();  // here its fence costs nothing
    wgmma_wait<1>();
    products_added();
    pending = stage;
    fence_operand(s);
    statistics.load_lse2(m.lse2[stage]);
    if (masked && !all_whole<1>(marks, consumer)) mask(job, row, m.tiles[stage]);
    weights_of(s, statistics, p.factor);
    pipe.advance();
    as_fragments(w, s);
    wgmma_fence();
    gemm_rs(dv, w, b, kColumns);
    wgmma_commit();
    wgmma_wait<1>();
    fence_operand(dp);
    statistics.load_delta(m.delta[stage]);
    score_gradients(dp, s, statistics);
    as_fragments(g, dp);
    store_score_gradients();
    read_marks();  // a loop: the compiler moves no wait before exponents across it
    wgmma_wait<0>();
    wgmma_fence();
    gemm_rs(dk, g, a, kColumns);
    wgmma_commit();
  }
  // Rows that do not exist have no weights either: what they add to dq is not dropped like their dk and dv.
  __device__ void mask(const KeyJob& job, int row, TilePlace tile) {
    tile.marks = marks;
    mask_rows<Stationary::kv, 1>(s, job.segment, tile, row, consumer);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= job.first && row + 8 * half < job.end) continue;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
        if (i / 2 % 2 == half) s[i] = -INFINITY;
    }
  }
  // dS to shared memory, rows of keys, swizzled as the copy engine does it.
  __device__ void store_score_gradients() {
    const int row = in_block() + lane() % 16;
    m.ds_empty[ds_pipe.index].wait(ds_pipe.phase ^ 1);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
      stmatrix(shared_address(m.ds[ds_pipe.index]) + row * 128 + ((2 * i + lane() / 16) ^ row % 8) * 16, g[i]);
  }
  __device__ void hand_over() {
    fence_proxy_async();
    release(m.ds_full[ds_pipe.index]);
    ds_pipe.advance();
  }
  __device__ void products_added() {
    fence_operand(dk);
    fence_operand(dv);
    if (pending >= 0) release(m.empty[pending]);
  }
  __device__ void finish_tile() {
    if (pending >= 0) hand_over();
    wgmma_wait<0>();
    products_added();
    pending = -1;
  }
  // None of whose pairs counts.
  __device__ void pass_tile() {
    finish_tile();
    m.ds_empty[ds_pipe.index].wait(ds_pipe.phase ^ 1);
    release(m.ds_full[ds_pipe.index]);
    ds_pipe.advance();
    release(m.empty[pipe.index]);
    pipe.advance();
    read_marks();
  }
};

// The consumer that makes dq: rows are queries.
template <int kDim>
struct QueryConsumer {
  using Memory = FusedMemory<kDim>;
  Memory& m;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<Memory::kGradStages> ds_pipe;
  PipelineState<Memory::kSumStages> dq_pipe;
  float dq[kDim / 2];

  __device__ void run() {
    for (int n = 0;; ++n, own_pipe.advance()) {
      m.own_full[own_pipe.index].wait(own_pipe.phase);
      if (uniform(m.jobs[n % Memory::kJobs].head) < 0) break;
      while (next_tile()) {
      }
      release(m.own_empty[own_pipe.index]);
    }
    for (int i = 0; i < Memory::kSumStages; ++i) hand_over({0, 0, -1, 0});
  }

 private:
  // False: the job has no more.
  __device__ bool next_tile() {
    m.full[pipe.index].wait(pipe.phase);
    const int marks = uniform(m.tiles[pipe.index].marks);
    const QueryTile place = m.queries[pipe.index];
    release(m.empty[pipe.index]);
    pipe.advance();
    if (marks < 0) return false;
    m.ds_full[ds_pipe.index].wait(ds_pipe.phase);
    wgmma_fence();
    if (is_wanted(marks, 0, 0)) add(0, 0);
    if (is_wanted(marks, 0, 1)) add(1, is_wanted(marks, 0, 0));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operand(dq);
    release(m.ds_empty[ds_pipe.index]);
    ds_pipe.advance();
    hand_over(place);
    return true;
  }
  // What 64 keys add. Rows of both operands are keys.
  __device__ void add(int consumer, int keep) {
    const int offset = panel_bytes(kGroupRows) * consumer, panel = panel_bytes(Memory::kRows);
    const auto ds = desc_mn_major(shared_address(m.ds[ds_pipe.index]) + offset, panel);
    const auto keys = desc_mn_major(shared_address(m.x[own_pipe.index]) + offset, panel);
#pragma unroll
    for (int i = 0; i < kGroupRows / 16; ++i)
      wgmma_ss<Major::mn, Major::mn>(dq, ds.after(i * 16 * 128), keys.after(i * 16 * 128), i > 0 || keep);
  }
  __device__ void hand_over(const QueryTile& place) {
    m.dq_empty[dq_pipe.index].wait(dq_pipe.phase ^ 1);
    if (place.rows >= 0) store(place.row);
    if (threadIdx.x % kGroup == 0) m.dq_place[dq_pipe.index] = place;
    fence_proxy_async();
    release(m.dq_full[dq_pipe.index]);
    dq_pipe.advance();
  }
  __device__ void store(int tile_row) {
    const int first = static_cast<int>(threadIdx.x) % kGroup / 32 * 16 + lane() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half;
      float* to = m.dq[dq_pipe.index] + row * kDim + lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        *reinterpret_cast<float2*>(to + 8 * swizzled_piece(n, tile_row + row)) =
            make_float2(dq[4 * n + 2 * half], dq[4 * n + 2 * half + 1]);
    }
  }
};

template <int kDim>
__global__ __launch_bounds__(FusedMemory<kDim>::kThreads, 1) void sm90_fused(const __grid_constant__ FusedParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  using Memory = FusedMemory<kDim>;
  auto& m = aligned<Memory>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup), warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (group == 0) {
    setmaxnreg_dec<Memory::kProducerRegisters>();
    if (warp == 0)
      FusedProducer<kDim>{p, m}.run();
    else if (lane() == 0)
      add_queries<kDim>(p, m, warp - 1);
  } else if (group <= Memory::kConsumers) {
    setmaxnreg_inc<Memory::kConsumerRegisters>();
    FusedConsumer<kDim>(p, m, group - 1).run();
  } else {
    setmaxnreg_dec<Memory::kSumRegisters>();
    QueryConsumer<kDim>{m}.run();
  }
#else
  __trap();  // code for other devices: supports() does not let it come here
#endif
}

template <int kDim>
FusedParams fused_params(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                         const SchedulePlan& plan, const QuerySums& sums) {
  FusedParams p{};
  const bool fits = make_tensor_map(args.k, pass.rate, p.x) && make_tensor_map(args.v, pass.rate, p.y) &&
                    make_tensor_map(args.q, pass.rate, p.a) && make_tensor_map(args.dout, pass.rate, p.b);
  RING_CHECK(fits, "attention_backward: operands that the copy engine does not take");
  p.dx = output_of(args.dk, args.carry_dk);
  p.dy = output_of(args.dv, args.carry_dv);
  p.lse2 = statistics.lse2.data<float>();
  p.delta = statistics.delta.data<float>();
  p.tokens = args.q.dim(0);
  p.dim = static_cast<int>(args.q.dim(2));
  p.group = static_cast<int>(args.q.dim(1) / args.k.dim(1));
  p.factor = args.scale * kLog2E;
  p.scale = args.scale;
  p.pass = pass;
  p.work = plan.work;
  p.scheduler = {plan.counter, static_cast<unsigned>(plan.blocks)};
  p.dq_sums = sums.sums_data();
  p.dq_turns = sums.turns_data();
  return p;
}

template <int kDim>
void run_fused(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
               const ExecContext& ctx) {
  using Memory = FusedMemory<kDim>;
  const std::int64_t kv_heads = args.k.dim(1), group = args.q.dim(1) / kv_heads;
  const SchedulePlan plan = plan_schedule(pass, args.pattern, args.queries, args.keys, Stationary::kv, kv_heads,
                                          kv_heads, Memory::kRows, 8 * kDim * group, ctx, BlockOrder::ascending);
  const QuerySums sums(args, kDim, ctx);
  if (plan.blocks > 0)
    launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), Memory::kThreads, sizeof(Memory) + kAlignment},
           sm90_fused<kDim>, fused_params<kDim>(args, pass, statistics, plan, sums));
  sums.finish(args, pass, ctx);
}

}  // namespace ring::cuda::sm90
