#pragma once
// The forward for Hopper, after FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2): the scores of the next tile
// are computed while the weights of this one multiply its values.

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
  Pass pass;
  Work work;
  Tickets tickets;
};

template <int kDim>
struct ForwardMemory {
  static constexpr int kStages = 2, kTile = tile_bytes<kDim>(kKeys);
  unsigned char q[2][tile_bytes<kDim>(kRows)], k[kStages][kTile], v[kStages][kTile];
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

// One thread.
template <int kDim>
__device__ void produce(const ForwardParams& p, ForwardMemory<kDim>& m) {
  using Memory = ForwardMemory<kDim>;
  Turn<Memory::kStages> k_turn, v_turn;
  Turn<kJobs> turn;
  for (int n = 0;; ++n, turn.next()) {
    const Job& job = m.jobs.jobs[turn.stage];
    m.jobs.full[turn.stage].wait(turn.parity);
    if (job.head < 0) {
      m.q_empty[n & 1].wait(~(n >> 1) & 1);
      return m.q_full[n & 1].arrive();
    }
    const int kv_head = job.head / p.group;
    const BoxRows queries(job.strand.q_row, job.strand.rate), keys(job.strand.k_row, job.strand.rate);
    TileStream<2> stream{columns_of<Owner::queries>(job, p.work)};
    const auto copy_tile = [&](unsigned char* to, const Boxes& from, const TilePlace& tile, Barrier& full) {
      full.arrive_expecting(Memory::kTile);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        copy_rows<kDim>(shared_address(to) + panel_bytes(kHalf) * h, kKeys, from, keys, kv_head, tile.column[h], full);
    };
    for (bool first = true, more = true; more; first = false) {
      TilePlace tile;
      more = stream.next(job, tile);
      if (first && !more) {  // at least one, so that the consumers know no other case
        tile = {};
        more = true;
      }
      tile.head = more ? 0 : -1;
      m.k_empty[k_turn.stage].wait(k_turn.parity ^ 1);
      m.tiles[k_turn.stage] = tile;
      if (more)
        copy_tile(m.k[k_turn.stage], p.k, tile, m.k_full[k_turn.stage]);
      else
        m.k_full[k_turn.stage].arrive();
      k_turn.next();
      if (first) {
        m.q_empty[n & 1].wait(~(n >> 1) & 1);
        m.q_full[n & 1].arrive_expecting(tile_bytes<kDim>(kRows));
        for (int h = 0; h < kConsumers; ++h)
          copy_rows<kDim>(shared_address(m.q[n & 1]) + panel_bytes(64) * h, kRows, p.q, queries, job.head,
                          job.row + 64 * h, m.q_full[n & 1]);
      }
      if (more) {
        m.v_empty[v_turn.stage].wait(v_turn.parity ^ 1);
        copy_tile(m.v[v_turn.stage], p.v, tile, m.v_full[v_turn.stage]);
        v_turn.next();
      }
    }
    m.jobs.empty[turn.stage].arrive();
  }
}

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

// Scores become weights relative to the largest score so far. rescale: what earlier sums are to be multiplied with;
// returns whether that is 1 for all rows of the warp.
template <int kSums>
__device__ inline bool softmax(float (&s)[kSums], RowSums& rows, float (&rescale)[2], float factor) {
  bool moved = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = rows.largest[half];
#pragma unroll
    for (int i = 0; i < kSums; i += 4) best = fmaxf(best, fmaxf(s[i + 2 * half], s[i + 2 * half + 1]));
    best = over_quad_max(best);
    // Rounded as products, not fused: earlier sums are relative to the shift as it was rounded then.
    const float shift = best == -INFINITY ? 0.0f : __fmul_rn(best, factor);
    rescale[half] = fast_exp2(__fmul_rn(rows.largest[half], factor) - shift);
    moved |= best != rows.largest[half];
    rows.largest[half] = best;
    float total = 0;
#pragma unroll
    for (int i = 0; i < kSums; i += 4)
#pragma unroll
      for (int j = i + 2 * half; j < i + 2 * half + 2; ++j) total += s[j] = fast_exp2(fmaf(s[j], factor, -shift));
    rows.total[half] = rows.total[half] * rescale[half] + total;
  }
  return !__any_sync(0xffffffffu, moved);
}

template <int kSums>
__device__ inline void scale_rows(float (&out)[kSums], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) out[i] *= factor[i / 2 % 2];
}

// Divides, merges with what is there already, and writes.
template <int kDim>
__device__ inline void finish(const ForwardParams& p, const Job& job, const float (&out)[kDim / 2], const RowSums& rows,
                              int row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float factor[2], kept[2], lse[2];
  std::int64_t token[2];
  bool exists[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = row + 8 * half;
    const float total = over_quad_sum(rows.total[half]);
    exists[half] = j >= job.first && j < job.end;
    token[half] = job.strand.q_row + std::int64_t{j} * job.strand.rate;
    factor[half] = total == 0.0f ? 0.0f : 1.0f / total;
    kept[half] = 0.0f;
    lse[half] = total == 0.0f ? -INFINITY : (__fmul_rn(rows.largest[half], p.factor) + log2f(total)) * kLn2;
    if (!p.out.carry.data || !exists[half]) continue;
    const Merged both = merge(lse[half], p.lse[job.head * p.tokens + token[half]]);
    lse[half] = both.lse;
    factor[half] *= both.own;
    kept[half] = both.before;
  }
  __syncwarp();  // lanes of a row have read its lse
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    write_row<kDim>(out, half, factor[half], kept[half], p.out, token[half], job.head, p.dim, exists[half]);
    if (lane % 4 == 0 && exists[half]) p.lse[job.head * p.tokens + token[half]] = lse[half];
  }
}

template <int kDim>
__device__ void consume(const ForwardParams& p, ForwardMemory<kDim>& m, int consumer) {
  using Memory = ForwardMemory<kDim>;
  const int warp = uniform(static_cast<int>(threadIdx.x) % kGroup / 32), lane = static_cast<int>(threadIdx.x) % 32;
  const auto release = [&](Barrier& empty) {
    if (lane == 0) empty.arrive();
  };
  Turn<Memory::kStages> keys, values;
  float out[kDim / 2], s[kKeys / 2], rescale[2];
  std::uint32_t weights[kKeys / 16][4];
  RowSums rows;
  TilePlace tile;
  const auto next_tile = [&](int n) {  // false: job n has none
    m.k_full[keys.stage].wait(keys.parity);
    tile = read_tile(m.tiles[keys.stage]);
    if (tile.head >= 0) return true;
    release(m.k_empty[keys.stage]);
    keys.next();
    release(m.q_empty[n & 1]);
    return false;
  };
  const auto scores = [&](int n) {
    multiply_rows<kDim>(s, shared_address(m.q[n & 1]) + panel_bytes(64) * consumer, kRows,
                        shared_address(m.k[keys.stage]), kKeys);
    end_products();
  };
  const auto add_values = [&] {
    m.v_full[values.stage].wait(values.parity);
    add_products(out, weights, shared_address(m.v[values.stage]), kKeys);
    end_products();
  };
  const auto values_added = [&] {
    hold(out);
    release(m.v_empty[values.stage]);
    values.next();
  };
  // Queues the first scores of job n; false: there is none (and what was queued is of no use).
  const auto start = [&](int n) {
    m.q_full[n & 1].wait(n >> 1 & 1);
    const bool exists = uniform(m.jobs.jobs[n % kJobs].head) >= 0;
    if (exists) next_tile(n);
    begin_products();
    scores(n);
    return exists;
  };
  bool more = start(0);
  for (int n = 0; more; ++n) {
    const Job& job = m.jobs.jobs[n % kJobs];
    const int row = job.row + 64 * consumer + 16 * warp + lane / 4;
    const auto scores_to_weights = [&] {
      hold(s);
      release(m.k_empty[keys.stage]);
      keys.next();
      if (!is_whole(tile, consumer, 2)) mask_rows<Owner::queries, 2>(s, job, tile, row, consumer);
      return softmax(s, rows, rescale, p.factor);
    };
    rows = {};
    clear(out);
    await_products<0>();
    scores_to_weights();
    as_fragments(weights, s);
    while (next_tile(n)) {
      begin_products();
      scores(n);
      add_values();  // of the tile before
      await_products<1>();
      const bool same = scores_to_weights();
      await_products<0>();
      values_added();
      if (!same) scale_rows(out, rescale);
      as_fragments(weights, s);
    }
    begin_products();
    add_values();
    more = start(n + 1);  // runs beside the end of this one
    await_products<1>();
    values_added();
    finish<kDim>(p, job, out, rows, row);
    release(m.jobs.empty[n % kJobs]);
  }
  await_products<0>();
}

template <int kDim>
__global__ __launch_bounds__(kThreads, 1) void sm90_forward(const __grid_constant__ ForwardParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  auto& m = *reinterpret_cast<ForwardMemory<kDim>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == 0) {
    give_registers<72>();
    if (threadIdx.x == 0) produce<kDim>(p, m);
    if (threadIdx.x == 32) m.jobs.template describe_all<Owner::queries>(p.work, p.pass, p.tickets, p.group);
  } else {
    take_registers<216>();
    consume<kDim>(p, m, group - 1);
  }
#else
  __trap();  // code for other devices: supports() does not let it come here
#endif
}

template <int kDim>
void run_forward(const Attention& a, const Pass& pass, const Context& ctx) {
  const int heads = static_cast<int>(a.q.dim(1)), kv_heads = static_cast<int>(a.k.dim(1)), group = heads / kv_heads;
  const int dim = static_cast<int>(a.q.dim(2));
  const WorkPlan plan = plan_work(pass, a.pattern, a.queries, a.keys, Owner::queries, heads, kv_heads, kRows,
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
  launch(ctx, {grid_of(grid_blocks(plan.blocks, ctx)), kThreads, sizeof(ForwardMemory<kDim>) + 1024},
         sm90_forward<kDim>, p);
}

}  // namespace ring::cuda::sm90
