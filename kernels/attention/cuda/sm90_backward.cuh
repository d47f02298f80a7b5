#pragma once
// The backward for Hopper. As in mma_backward.cuh one kernel serves both directions, 7 products instead of 5, so that
// nothing is summed across blocks and the bits repeat: a block owns rows of x and y and streams tiles of a and b. With
// S = scale x.a and dP = y.b for each pair, P = exp(S - lse) and dS = P (dP - delta):
//   owning keys:     x, y = k, v;     a, b = q, dout;   dk = scale sum dS a,  dv = sum P b
//   owning queries:  x, y = q, dout;  a, b = k, v;      dq = scale sum dS a
// P and dS go from one product to the next in registers.

#include "kernels/attention/cuda/sm90.cuh"

namespace ring::cuda::sm90 {

struct BackwardParams {
  Boxes x, y, a, b;
  Output dx, dy;                  // dy: owning keys
  Output partial_dx, partial_dy;  // of the shares of a split list: a row for each slot and row of a tile
  const float *lse2, *delta;      // [Hq,N]
  std::int64_t tokens;
  int dim, group;
  float factor, scale;  // from a product to a power of two; of the scores
  BranchPass pass;
  TileSchedule work;
  Tickets tickets;
};

template <Stationary owner, int kDim>
struct BackwardMemory {
  // 64 columns where sums of both gradients leave no registers for more.
  static constexpr int kHalves = owner == Stationary::q ? 2 : 1, kColumns = kHalves * kHalf;
  static constexpr int kStages = kHalves * kDim == 256 ? 2 : 4, kTile = tile_bytes<kDim>(kColumns),
                       kOwn = tile_bytes<kDim>(kRows);
  unsigned char x[kOwn], y[kOwn], a[kStages][kTile], b[kStages][kTile];
  float lse2[kStages][kColumns], delta[kStages][kColumns];  // of streamed queries
  Barrier own_full, own_empty, full[kStages], empty[kStages];
  TilePlace tiles[kStages];
  Job jobs[3];  // of the job before, of this one, and of the one whose tiles come in

  __device__ void init() {
    own_full.init(1), own_empty.init(kConsumerWarps);
    for (int s = 0; s < kStages; ++s) full[s].init(32), empty[s].init(kConsumerWarps);
    publish_barrier_inits();
  }
};

// lse2 and delta of the 64 queries from `column` on: two of each lane. Where there is none: no weight.
struct StreamedStatistics {
  float lse2[2], delta[2];
  __device__ void load(const BackwardParams& p, const HeadSegment& s, int column, int head) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = column + static_cast<int>(threadIdx.x) + 32 * i;
      const bool exists = j >= s.q_first && j < s.q_end;
      const std::int64_t at = head * p.tokens + s.q_row + std::int64_t{j} * s.rate;
      lse2[i] = exists ? p.lse2[at] : INFINITY;
      delta[i] = exists ? p.delta[at] : 0.0f;
    }
  }
  __device__ void store(float* to_lse2, float* to_delta) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) to_lse2[threadIdx.x + 32 * i] = lse2[i], to_delta[threadIdx.x + 32 * i] = delta[i];
  }
};

// For a warp.
__device__ inline unsigned next_ticket(const Tickets& tickets) {
  return static_cast<unsigned>(uniform(threadIdx.x == 0 ? static_cast<int>(tickets.take()) : 0));
}

// One warp.
template <Stationary owner, int kDim>
__device__ void produce(const BackwardParams& p, BackwardMemory<owner, kDim>& m) {
  using Memory = BackwardMemory<owner, kDim>;
  constexpr bool kKeys = owner == Stationary::kv;
  const bool leader = threadIdx.x == 0;
  Turn<Memory::kStages> turn;
  int n = 0;
  unsigned next = next_ticket(p.tickets);
  for (unsigned ticket = next; ticket < p.tickets.blocks; ticket = next) {
    next = next_ticket(p.tickets);  // asked for long before it is needed
    const CtaCoord at = p.work[ticket];
    Job& job = m.jobs[n % 3];
    __syncwarp();
    bool exists = false;
    if (leader) {
      job.segment = HeadSegment(p.pass, at.piece, p.pass.offset(kKeys ? at.head : at.head / p.group));
      exists = describe<owner>(job, p.work, at);
    }
    __syncwarp();  // the job is there
    if (!uniform(exists)) continue;
    const HeadSegment& segment = job.segment;
    const BoxRows own(kKeys ? segment.k_row : segment.q_row, segment.rate);
    const BoxRows streamed(kKeys ? segment.q_row : segment.k_row, segment.rate);
    const int own_head = uniform(job.head), row = uniform(job.row);
    m.own_empty.wait(~n & 1);
    expect(m.own_full, 2 * Memory::kOwn);
    for (int h = 0; h < kConsumers; ++h) {
      copy_rows<kDim>(shared_address(m.x) + panel_bytes(64) * h, kRows, p.x, own, own_head, row + 64 * h, m.own_full);
      copy_rows<kDim>(shared_address(m.y) + panel_bytes(64) * h, kRows, p.y, own, own_head, row + 64 * h, m.own_full);
    }
    const int first_head = kKeys ? own_head * p.group : own_head / p.group;
    const int end_head = first_head + (kKeys ? p.group : 1);
    for (int head = first_head; head <= end_head; ++head) {
      TileStream<Memory::kHalves> stream(job, columns_of<owner>(job, p.work));
      for (;;) {
        TilePlace tile;
        const bool more = head < end_head && stream.next(tile);
        if (!more && head < end_head) break;
        if (!more) tile.marks = kNoTile;
        StreamedStatistics statistics;
        if (kKeys && more) statistics.load(p, segment, tile.column[0], head);
        Barrier& full = m.full[turn.stage];
        m.empty[turn.stage].wait(turn.parity ^ 1);
        if (kKeys && more) statistics.store(m.lse2[turn.stage], m.delta[turn.stage]);
        if (leader) m.tiles[turn.stage] = tile;
        if (more) {
          expect(full, 2 * Memory::kTile);
#pragma unroll
          for (int h = 0; h < Memory::kHalves; ++h) {
            const int offset = panel_bytes(kHalf) * h;
            copy_rows<kDim>(shared_address(m.a[turn.stage]) + offset, Memory::kColumns, p.a, streamed, head,
                            tile.column[h], full);
            copy_rows<kDim>(shared_address(m.b[turn.stage]) + offset, Memory::kColumns, p.b, streamed, head,
                            tile.column[h], full);
          }
        }
        if (!more || !leader) full.arrive();
        turn.next();
        if (!more) break;
      }
    }
    ++n;
  }
  if (leader) {
    m.jobs[n % 3].head = -1;
    m.own_empty.wait(~n & 1);
    m.own_full.arrive();
  }
}

// What of the statistics a lane needs: of its two rows (owning queries), or of its columns.
template <Stationary owner>
struct LaneStatistics {
  float lse2_of[2], delta_of[2];
  const float *lse2_columns, *delta_columns;

  __device__ void load(const BackwardParams& p, const Job& job, int row) {
    if constexpr (owner == Stationary::q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = row + 8 * half;
        const bool exists = j >= job.first && j < job.end;
        const std::int64_t at = job.head * p.tokens + job.segment.q_row + std::int64_t{j} * job.segment.rate;
        lse2_of[half] = exists ? p.lse2[at] : INFINITY;
        delta_of[half] = exists ? p.delta[at] : 0.0f;
      }
    }
  }
  __device__ void stage(const float* lse2, const float* delta) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    lse2_columns = lse2 + 2 * t, delta_columns = delta + 2 * t;
  }
  // Of the four sums of a lane in 8 columns: rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1.
  __device__ float4 lse2(int n) const { return spread(lse2_of, lse2_columns, n); }
  __device__ float4 delta(int n) const { return spread(delta_of, delta_columns, n); }

 private:
  __device__ static float4 spread(const float (&of)[2], const float* columns, int n) {
    if (owner == Stationary::q) return {of[0], of[0], of[1], of[1]};
    const float2 c = *reinterpret_cast<const float2*>(columns + 8 * n);
    return {c.x, c.y, c.x, c.y};
  }
};

// Scores become weights.
template <Stationary owner, int kSums>
__device__ inline void weights_of(float (&s)[kSums], const LaneStatistics<owner>& of, float factor) {
#pragma unroll
  for (int n = 0; n < kSums / 4; ++n) {
    const float4 l = of.lse2(n);
    s[4 * n] = fast_exp2(fmaf(s[4 * n], factor, -l.x)), s[4 * n + 1] = fast_exp2(fmaf(s[4 * n + 1], factor, -l.y));
    s[4 * n + 2] = fast_exp2(fmaf(s[4 * n + 2], factor, -l.z));
    s[4 * n + 3] = fast_exp2(fmaf(s[4 * n + 3], factor, -l.w));
  }
}
// dP becomes dS.
template <Stationary owner, int kSums>
__device__ inline void score_gradients(float (&dp)[kSums], const float (&w)[kSums], const LaneStatistics<owner>& of) {
#pragma unroll
  for (int n = 0; n < kSums / 4; ++n) {
    const float4 d = of.delta(n);
    dp[4 * n] = w[4 * n] * (dp[4 * n] - d.x), dp[4 * n + 1] = w[4 * n + 1] * (dp[4 * n + 1] - d.y);
    dp[4 * n + 2] = w[4 * n + 2] * (dp[4 * n + 2] - d.z), dp[4 * n + 3] = w[4 * n + 3] * (dp[4 * n + 3] - d.w);
  }
}

template <int kDim>
__device__ inline void write_gradient(const float (&sums)[kDim / 2], float factor, const Output& whole,
                                      const Output& partial, const Job& job, int row, int own_row, int dim) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = row + 8 * half;
    const bool exists = j >= job.first && j < job.end;
    if (job.slot < 0)
      write_row<kDim>(sums, half, factor, 1.0f, whole, own_row + std::int64_t{j} * job.segment.rate, job.head, dim,
                      exists);
    else
      write_row<kDim>(sums, half, 1.0f, 0.0f, partial, std::int64_t{job.slot} * kRows + j - job.row, 0, dim, exists);
  }
}

template <Stationary owner, int kDim>
__device__ void consume(const BackwardParams& p, BackwardMemory<owner, kDim>& m, int consumer) {
  using Memory = BackwardMemory<owner, kDim>;
  constexpr bool kKeys = owner == Stationary::kv;
  constexpr int kColumns = Memory::kColumns;
  const int warp = uniform(static_cast<int>(threadIdx.x) % kGroup / 32), lane = static_cast<int>(threadIdx.x) % 32;
  const auto release = [&](Barrier& empty) {
    if (lane == 0) empty.arrive();
  };
  const std::uint32_t x = shared_address(m.x) + panel_bytes(64) * consumer;
  const std::uint32_t y = shared_address(m.y) + panel_bytes(64) * consumer;
  Turn<Memory::kStages> turn;
  for (int n = 0;; ++n) {
    m.own_full.wait(n & 1);
    const Job& job = m.jobs[n % 3];
    if (uniform(job.head) < 0) return;
    const int row = job.row + 64 * consumer + 16 * warp + lane / 4;
    float dx[kDim / 2], dy[kKeys ? kDim / 2 : 1], s[kColumns / 2], dp[kColumns / 2];
    std::uint32_t w[kKeys ? kColumns / 16 : 1][4], g[kColumns / 16][4];
    clear(dx);
    clear(dy);
    LaneStatistics<owner> statistics;
    statistics.load(p, job, row);
    for (;; turn.next()) {
      const int stage = turn.stage;
      m.full[stage].wait(turn.parity);
      const TilePlace& tile = m.tiles[stage];
      const int marks = uniform(tile.marks);
      if (marks < 0) break;
      if (!is_wanted(marks, 0, consumer) && !is_wanted(marks, 1, consumer)) {
        release(m.empty[stage]);
        continue;
      }
      const std::uint32_t a = shared_address(m.a[stage]), b = shared_address(m.b[stage]);
      begin_products();
      multiply_rows<kDim>(s, x, kRows, a, kColumns);
      end_products();
      multiply_rows<kDim>(dp, y, kRows, b, kColumns);
      end_products();
      await_products<1>();
      hold(s);
      if (!all_whole(marks, consumer, Memory::kHalves)) mask_rows<owner, Memory::kHalves>(s, job, tile, row, consumer);
      statistics.stage(m.lse2[stage], m.delta[stage]);
      weights_of<owner>(s, statistics, p.factor);
      if constexpr (kKeys) {
        as_fragments(w, s);
        begin_products();
        add_products(dy, w, b, kColumns);
        end_products();
        await_products<1>();
      } else {
        await_products<0>();
      }
      hold(dp);
      score_gradients<owner>(dp, s, statistics);
      as_fragments(g, dp);
      begin_products();
      add_products(dx, g, a, kColumns);
      end_products();
      await_products<0>();
      hold(dx);
      hold(dy);
      release(m.empty[stage]);
    }
    release(m.empty[turn.stage]);
    turn.next();
    release(m.own_empty);
    const int own_row = kKeys ? job.segment.k_row : job.segment.q_row;
    write_gradient<kDim>(dx, p.scale, p.dx, p.partial_dx, job, row, own_row, p.dim);
    if constexpr (kKeys) write_gradient<kDim>(dy, 1.0f, p.dy, p.partial_dy, job, row, own_row, p.dim);
  }
}

template <Stationary owner, int kDim>
__global__ __launch_bounds__(kThreads, 1) void sm90_backward(const __grid_constant__ BackwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  auto& m = aligned<BackwardMemory<owner, kDim>>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    give_registers<owner == Stationary::kv ? 24 : 40>();
    if (threadIdx.x < 32) produce<owner, kDim>(p, m);
  } else {
    take_registers<owner == Stationary::kv ? 240 : 232>();
    consume<owner, kDim>(p, m, group - 1);
  }
#else
  __trap();  // code for other devices: supports() does not let it come here
#endif
}

template <Stationary owner, int kDim>
void run_backward(const AttentionBackward& args, const BranchPass& pass, const RowStatistics& statistics,
                  const ExecContext& ctx) {
  constexpr bool kKeys = owner == Stationary::kv;
  const std::int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), group = heads / kv_heads, dim = args.q.dim(2);
  const SchedulePlan plan =
      plan_schedule(pass, args.pattern, args.queries, args.keys, owner, kKeys ? kv_heads : heads, kv_heads, kRows,
                    std::max<std::int64_t>(1, kKeys ? 4 * dim * group : 4 * dim / group), ctx);
  if (plan.blocks == 0) return;
  BackwardParams p{};
  const auto boxes = [&](const Tensor& t, Boxes& to) {
    RING_CHECK(boxes_of(t, pass.rate, to), "attention_backward: operands that the copy engine does not take");
  };
  boxes(kKeys ? args.k : args.q, p.x);
  boxes(kKeys ? args.v : args.dout, p.y);
  boxes(kKeys ? args.q : args.k, p.a);
  boxes(kKeys ? args.dout : args.v, p.b);
  p.dx = kKeys ? output_of(args.dk, args.carry_dk) : output_of(args.dq, args.carry_dq);
  if (kKeys) p.dy = output_of(args.dv, args.carry_dv);
  p.lse2 = statistics.lse2.data<float>();
  p.delta = statistics.delta.data<float>();
  p.tokens = args.q.dim(0);
  p.dim = static_cast<int>(dim);
  p.group = static_cast<int>(group);
  p.factor = args.scale * kLog2E;
  p.scale = args.scale;
  p.pass = pass;
  p.work = plan.work;
  p.tickets = {plan.counter, static_cast<unsigned>(plan.blocks)};
  Tensor partial_dk, partial_dv;
  if (kKeys && plan.lists.slots > 0) {
    partial_dk = ctx.empty({plan.pieces, plan.lists.slots, kListRows, dim});
    partial_dv = ctx.empty(partial_dk.shape());
    p.partial_dx.whole = {partial_dk.data<float>(), dim, 0};
    p.partial_dy.whole = {partial_dv.data<float>(), dim, 0};
  }
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), kThreads, sizeof(BackwardMemory<owner, kDim>) + kAlignment},
         sm90_backward<owner, kDim>, p);
  if (!partial_dk.defined()) return;
  add_splits(plan.lists, plan.work.pieces, {partial_dk, args.dk, args.carry_dk, args.scale}, ctx);
  add_splits(plan.lists, plan.work.pieces, {partial_dv, args.dv, args.carry_dv, 1.0f}, ctx);
}

}  // namespace ring::cuda::sm90
