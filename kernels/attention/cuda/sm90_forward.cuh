#pragma once
// The forward for Hopper. Each consumer has two products under way, the scores of one tile and the weights of the tile
// before times its values, and two steps of the softmax fit beside them (after FlashAttention-3, Shah et al. 2024,
// sections 3.1 and 3.2): the largest scores are looked for while the values are added; then the exponents, which go
// straight to the registers that the weights of the tile before have left, while the other consumer's products run.
// docs/kernels.md has a timeline, docs/measured/kernels.md what was tried.

#include "kernels/attention/cuda/sm90.cuh"

namespace ring::cuda::sm90 {

constexpr int kKeys = 2 * kHalf;  // of a tile

struct ForwardParams {
  Boxes q, k, v;
  Output out;
  float* lse;
  std::int64_t tokens;
  int dim, group;  // group: query heads per KV head
  float factor;    // from a product to a power of two
  BranchPass pass;
  TileSchedule work;
  Tickets tickets;
};

template <int kDim>
struct ForwardMemory {
  static constexpr int kStages = 2, kTile = tile_bytes<kDim>(kKeys), kQueries = tile_bytes<kDim>(kRows);
  unsigned char q[2][kQueries], k[kStages][kTile], v[kStages][kTile];
  Barrier q_full[2], q_empty[2], k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  TilePlace tiles[kStages];  // come and go with k
  Jobs jobs;

  __device__ void init() {
    for (int i = 0; i < 2; ++i) q_full[i].init(1), q_empty[i].init(kConsumerWarps);
    for (int s = 0; s < kStages; ++s) {
      k_full[s].init(1), v_full[s].init(1);
      k_empty[s].init(kConsumerWarps), v_empty[s].init(kConsumerWarps);
    }
    jobs.init();
    publish_barrier_inits();
  }
};

// One warp. Tiles are asked for in the order of their use: the keys of a tile, then the values of the tile before.
template <int kDim>
struct ForwardProducer {
  using Memory = ForwardMemory<kDim>;
  const ForwardParams& p;
  Memory& m;
  Turn<Memory::kStages> keys, values;

  __device__ void run() {
    Turn<kJobs> turn;
    for (int n = 0;; ++n, turn.next()) {
      const Job& job = m.jobs.jobs[turn.stage];
      m.jobs.full[turn.stage].wait(turn.parity);
      if (uniform(job.head) < 0) return end(n);
      copy_job(job, n);
      __syncwarp();
      if (lane() == 0) m.jobs.empty[turn.stage].arrive();
    }
  }

 private:
  __device__ void end(int n) {
    m.q_empty[n & 1].wait(~(n >> 1) & 1);
    if (lane() == 0) m.q_full[n & 1].arrive();
  }
  __device__ void copy_job(const Job& job, int n) {
    const int kv_head = uniform(job.head) / p.group;
    const BoxRows rows(job.segment.k_row, job.segment.rate);
    TileStream<2> stream(job, columns_of<Stationary::q>(job, p.work));
    TilePlace tile{}, before;  // one tile at least, so that the consumers know no other case
    stream.next(tile);
    copy_keys(tile, rows, kv_head);
    copy_queries(job, n);
    do {
      before = tile;
      if (!stream.next(tile)) tile.marks = kNoTile;
      copy_keys(tile, rows, kv_head);
      m.v_empty[values.stage].wait(values.parity ^ 1);
      copy_tile(m.v[values.stage], p.v, before, rows, kv_head, m.v_full[values.stage]);
      values.next();
    } while (tile.marks >= 0);
  }
  __device__ void copy_keys(const TilePlace& tile, const BoxRows& rows, int kv_head) {
    Barrier& full = m.k_full[keys.stage];
    m.k_empty[keys.stage].wait(keys.parity ^ 1);
    if (lane() == 0) {
      m.tiles[keys.stage] = tile;
      if (tile.marks < 0) full.arrive();
    }
    if (tile.marks >= 0) copy_tile(m.k[keys.stage], p.k, tile, rows, kv_head, full);
    keys.next();
  }
  __device__ void copy_queries(const Job& job, int n) {
    const BoxRows rows(job.segment.q_row, job.segment.rate);
    const int head = uniform(job.head), row = uniform(job.row);
    m.q_empty[n & 1].wait(~(n >> 1) & 1);
    expect(m.q_full[n & 1], Memory::kQueries);
#pragma unroll
    for (int c = 0; c < kConsumers; ++c)
      copy_rows<kDim>(shared_address(m.q[n & 1]) + panel_bytes(64) * c, kRows, p.q, rows, head, row + 64 * c,
                      m.q_full[n & 1]);
  }
  __device__ void copy_tile(unsigned char* to, const Boxes& from, const TilePlace& tile, const BoxRows& rows, int head,
                            Barrier& full) {
    expect(full, Memory::kTile);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      copy_rows<kDim>(shared_address(to) + panel_bytes(kHalf) * h, kKeys, from, rows, head, tile.column[h], full);
  }
};

// The largest score and the sum of weights of a lane's two rows; the sum is of this lane's columns only until the end.
struct RowSums {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

__device__ inline float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float over_quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What a tile's weights are relative to, and what earlier sums are to be multiplied with: 1 for all rows of the warp
// unless `moved`.
struct Shift {
  float shift[2], rescale[2];
  bool moved;
};
template <int kSums>
__device__ inline Shift raise_largest(RowSums& rows, const float (&s)[kSums], float factor) {
  Shift to;
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = rows.largest[half];
#pragma unroll
    for (int i = 0; i < kSums; i += 4) best = fmaxf(best, fmaxf(s[i + 2 * half], s[i + 2 * half + 1]));
    best = over_quad_max(best);
    // Rounded as products, not fused: earlier sums are relative to the shift as it was rounded then.
    to.shift[half] = best == -INFINITY ? 0.0f : __fmul_rn(best, factor);
    to.rescale[half] = fast_exp2(__fmul_rn(rows.largest[half], factor) - to.shift[half]);
    moved |= best != rows.largest[half];
    rows.largest[half] = best;
  }
  to.moved = __any_sync(0xffffffffu, moved);
  return to;
}
// Scores become weights, as a left operand.
template <int kSums>
__device__ inline void weigh(std::uint32_t (&weights)[kSums / 8][4], RowSums& rows, const float (&s)[kSums],
                             const Shift& by, float factor) {
  float total[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kSums; i += 2) {
    const int half = i / 2 % 2;
    const float a = fast_exp2(fmaf(s[i], factor, -by.shift[half])),
                b = fast_exp2(fmaf(s[i + 1], factor, -by.shift[half]));
    total[half] += a;
    total[half] += b;
    weights[i / 8][i / 2 % 4] = pack_bf16(a, b);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) rows.total[half] = rows.total[half] * by.rescale[half] + total[half];
}

template <int kSums>
__device__ inline void scale_rows(float (&out)[kSums], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) out[i] *= factor[i / 2 % 2];
}

// The 16 rows that a warp writes at the end of a job, and where a lane has two of them, 8 apart.
struct WarpRows {
  int first, begin, end;  // rows [begin, end) exist
  int head, rate;
  std::int64_t token_of_0;
  __device__ WarpRows(const Job& job, int first)
      : first(first),
        begin(job.first),
        end(job.end),
        head(job.head),
        rate(job.segment.rate),
        token_of_0(job.segment.q_row) {}
  __device__ int row(int half) const { return first + lane() / 4 + 8 * half; }
  __device__ bool exists(int row) const { return row >= begin && row < end; }
  __device__ std::int64_t token(int row) const { return token_of_0 + std::int64_t{row} * rate; }
};

// What a row's sums are divided by, and its log-sum-exp.
struct RowEnd {
  float factor, lse;
  __device__ RowEnd(float largest, float total, float powers) {
    factor = total == 0.0f ? 0.0f : 1.0f / total;
    lse = total == 0.0f ? -INFINITY : (__fmul_rn(largest, powers) + log2f(total)) * kLn2;
  }
};

// Merges with what is there already, and writes.
template <int kDim>
__device__ inline void write_merged(const ForwardParams& p, const WarpRows& rows, const float (&out)[kDim / 2],
                                    const RowSums& sums) {
  float factor[2], kept[2] = {0, 0}, lse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    const RowEnd end(sums.largest[half], over_quad_sum(sums.total[half]), p.factor);
    factor[half] = end.factor, lse[half] = end.lse;
    if (!p.out.carry.data || !rows.exists(row)) continue;
    const Merged both = merge(lse[half], p.lse[rows.head * p.tokens + rows.token(row)]);
    lse[half] = both.lse;
    factor[half] *= both.own;
    kept[half] = both.before;
  }
  __syncwarp();  // lanes of a row have read its lse
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    write_row<kDim>(out, half, factor[half], kept[half], p.out, rows.token(row), rows.head, p.dim, rows.exists(row));
    if (lane() % 4 == 0 && rows.exists(row)) p.lse[rows.head * p.tokens + rows.token(row)] = lse[half];
  }
}

// A warp's 16 rows of a tile in shared memory, which nobody else uses any more.
template <int kDim>
struct StagedRows {
  unsigned char* tile;
  int first;  // in the tile, a multiple of 16

  __device__ int place(int row, int chunk) const {  // of 16 bytes; as the copy engine swizzles
    return chunk / 8 * panel_bytes(kRows) + (first + row) * 128 + ((chunk % 8 ^ row % 8) * 16);
  }
  __device__ void store(const float (&out)[kDim / 2], const float (&factor)[2]) const {
#pragma unroll
    for (int b = 0; b < kDim / 8; b += 2) {
      const float* c = out + 4 * b;
      const std::uint32_t r[4] = {
          pack_bf16(c[0] * factor[0], c[1] * factor[0]), pack_bf16(c[2] * factor[1], c[3] * factor[1]),
          pack_bf16(c[4] * factor[0], c[5] * factor[0]), pack_bf16(c[6] * factor[1], c[7] * factor[1])};
      store_matrices(shared_address(tile) + place(lane() % 16, b + lane() / 16), r);
    }
  }
  // To global memory, whole rows at a time.
  __device__ void copy_out(const ForwardParams& p, const WarpRows& rows) const {
    constexpr int kChunks = kDim / 8, kStep = 32 / kChunks;  // chunks of a row; rows at once
    const int chunk = lane() % kChunks, mine = lane() / kChunks;
    __nv_bfloat16* to = p.out.half.at(rows.token(rows.first + mine), rows.head) + chunk * 8;
    const std::int64_t step = p.out.half.row * rows.rate * kStep;
#pragma unroll
    for (int i = 0; i < 16; i += kStep, to += step) {
      const uint4 x = *reinterpret_cast<const uint4*>(tile + place(mine + i, chunk));
      if (chunk * 8 < p.dim && rows.exists(rows.first + mine + i)) *reinterpret_cast<uint4*>(to) = x;
    }
  }
};

// Writes through shared memory.
template <int kDim>
__device__ inline void write_staged(const ForwardParams& p, const WarpRows& rows, const float (&out)[kDim / 2],
                                    const RowSums& sums, const StagedRows<kDim>& staged) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    const RowEnd end(sums.largest[half], over_quad_sum(sums.total[half]), p.factor);
    factor[half] = end.factor;
    if (lane() % 4 == 0 && rows.exists(row)) p.lse[rows.head * p.tokens + rows.token(row)] = end.lse;
  }
  staged.store(out, factor);
  __syncwarp();
  staged.copy_out(p, rows);
  order_before_copies();
  __syncwarp();
}

// Consumers queue their products in turn, so that one's run while the other computes weights.
struct ProductOrder {
  int consumer;
  __device__ explicit ProductOrder(int consumer) : consumer(consumer) {
    if (consumer == 1) named_barrier_arrive<kConsumers * kGroup>(1);  // the other one begins
  }
  __device__ void await() const { named_barrier_wait<kConsumers * kGroup>(1 + consumer); }
  __device__ void pass() const { named_barrier_arrive<kConsumers * kGroup>(2 - consumer); }
};

// merging: with what is carried, or sums that are not rounded.
template <int kDim, bool merging>
struct ForwardConsumer {
  using Memory = ForwardMemory<kDim>;
  const ForwardParams& p;
  Memory& m;
  const int consumer, warp;
  const ProductOrder order;
  Turn<Memory::kStages> keys, values;
  float out[kDim / 2], scores[kKeys / 2];
  std::uint32_t weights[kKeys / 16][4];
  RowSums rows;
  int marks = kNoTile;  // of the next tile

  __device__ ForwardConsumer(const ForwardParams& p, Memory& m, int consumer)
      : p(p), m(m), consumer(consumer), warp(uniform(static_cast<int>(threadIdx.x) % kGroup / 32)), order(consumer) {}

  __device__ void run() {
    bool more = begin_job(0);
    order.await();
    begin_products();
    queue_scores(0);
    order.pass();
    for (int n = 0; more; ++n) {
      const Job& job = m.jobs.jobs[n % kJobs];
      first_tile(job);
      while (marks >= 0) {  // tiles of which every pair counts have a loop of their own
        while (all_whole(marks, consumer, 2)) next_tile<false>(job, n);
        if (marks >= 0) next_tile<true>(job, n);
      }
      release(m.k_empty[keys.stage]);  // that there is no more
      keys.next();
      more = begin_job(n + 1);
      order.await();
      begin_products();
      queue_values();
      queue_scores(n + 1);  // run beside the end of this job; of no use where there is no more
      order.pass();
      await_products<1>();
      values_added();
      write(job, n);
    }
    await_products<0>();
  }

 private:
  __device__ static void release(Barrier& empty) {
    if (lane() == 0) empty.arrive();
  }
  // The scores of a job's first tile.
  __device__ void first_tile(const Job& job) {
    rows = {};
    clear(out);
    await_products<0>();
    take_scores<true>(job);
    const Shift shift = raise_largest(rows, scores, p.factor);
    read_marks();
    weigh(weights, rows, scores, shift, p.factor);
  }
  template <bool masked>
  __device__ void next_tile(const Job& job, int n) {
    order.await();
    begin_products();
    queue_scores(n);
    queue_values();
    order.pass();
    await_products<1>();
    take_scores<masked>(job);
    const Shift shift = raise_largest(rows, scores, p.factor);
    read_marks();  // a loop here also keeps the compiler from moving the next wait before the search for the largest
    await_products<0>();
    values_added();
    if (shift.moved) scale_rows(out, shift.rescale);
    weigh(weights, rows, scores, shift, p.factor);
  }

  __device__ void read_marks() {
    m.k_full[keys.stage].wait(keys.parity);
    marks = uniform(m.tiles[keys.stage].marks);
  }
  // False: there is no such job.
  __device__ bool begin_job(int n) {
    m.q_full[n & 1].wait(n >> 1 & 1);
    const bool exists = uniform(m.jobs.jobs[n % kJobs].head) >= 0;
    if (exists) read_marks();
    return exists;
  }
  __device__ void queue_scores(int n) {
    const std::uint32_t q = shared_address(m.q) + (n & 1) * Memory::kQueries + panel_bytes(64) * consumer;
    multiply_rows<kDim>(scores, q, kRows, shared_address(m.k) + keys.stage * Memory::kTile, kKeys);
    end_products();
  }
  __device__ void queue_values() {
    m.v_full[values.stage].wait(values.parity);
    add_products(out, weights, shared_address(m.v) + values.stage * Memory::kTile, kKeys);
    end_products();
  }
  template <bool masked>
  __device__ void take_scores(const Job& job) {
    hold(scores);
    if constexpr (masked) {
      TilePlace tile = m.tiles[keys.stage];
      tile.marks = marks;
      mask_rows<Stationary::q, 2>(scores, job, tile, job.row + 64 * consumer + 16 * warp + lane() / 4, consumer);
      __syncwarp();  // all have read the tile's place
    }
    release(m.k_empty[keys.stage]);
    keys.next();
  }
  __device__ void values_added() {
    hold(out);
    release(m.v_empty[values.stage]);
    values.next();
  }
  __device__ void write(const Job& job, int n) {
    const int in_tile = 64 * consumer + 16 * warp;
    const WarpRows own(job, job.row + in_tile);
    if constexpr (merging)
      write_merged<kDim>(p, own, out, rows);
    else
      write_staged<kDim>(p, own, out, rows, {m.q[n & 1], in_tile});
    release(m.q_empty[n & 1]);
    release(m.jobs.empty[n % kJobs]);
  }
};

template <int kDim, bool merging>
__global__ __launch_bounds__(kThreads, 1) void sm90_forward(const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  auto& m = aligned<ForwardMemory<kDim>>(memory);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    give_registers<72>();
    if (threadIdx.x < 32) ForwardProducer<kDim>{p, m}.run();
    if (threadIdx.x == 32) m.jobs.template describe_all<Stationary::q>(p.work, p.pass, p.tickets, p.group);
  } else {
    take_registers<216>();
    ForwardConsumer<kDim, merging>(p, m, group - 1).run();
  }
#else
  __trap();  // code for other devices: supports() does not let it come here
#endif
}

template <int kDim>
void run_forward(const Attention& a, const BranchPass& pass, const ExecContext& ctx) {
  const int heads = static_cast<int>(a.q.dim(1)), kv_heads = static_cast<int>(a.k.dim(1)), group = heads / kv_heads;
  const int dim = static_cast<int>(a.q.dim(2));
  const SchedulePlan plan = plan_schedule(pass, a.pattern, a.queries, a.keys, Stationary::q, heads, kv_heads, kRows,
                                          std::max(1, 4 * dim / group), ctx);
  if (plan.blocks == 0) return;
  ForwardParams p{};
  const bool fits = boxes_of(a.q, pass.rate, p.q) && boxes_of(a.k, pass.rate, p.k) && boxes_of(a.v, pass.rate, p.v);
  RING_CHECK(fits, "attention: operands that the copy engine does not take");
  p.out = output_of(a.out, a.carry);
  p.lse = a.lse.data<float>();
  p.tokens = a.q.dim(0);
  p.dim = dim;
  p.group = group;
  p.factor = a.scale * kLog2E;
  p.pass = pass;
  p.work = plan.work;
  p.tickets = {plan.counter, static_cast<unsigned>(plan.blocks)};
  const bool merging = p.out.carry.data || !p.out.half.data;
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), kThreads, sizeof(ForwardMemory<kDim>) + kAlignment},
         merging ? sm90_forward<kDim, true> : sm90_forward<kDim, false>, p);
}

}  // namespace ring::cuda::sm90
