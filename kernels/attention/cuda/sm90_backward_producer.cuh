#pragma once
// Backward for Hopper: the shared memory of a thread block, and the producer warp. sm90_backward.cuh defines x, y, a
// and b.

#include "kernels/attention/cuda/backward_params.cuh"
#include "kernels/attention/cuda/sm90_dropout.cuh"

namespace ring::cuda::sm90 {

struct TmaBackwardParams : BackwardParams {
  TensorMap x, y, a, b;
  TileScheduler scheduler;
  Output partial_dx, partial_dy;  // for split block lists: f32 [slots * 128, dim], a tile of 128 rows per slot
  DropoutParams dropout;
};
// Returns true if gradients are f32, are added to earlier ones (carry), or are partial sums because block lists are
// split. Otherwise the epilogue only rounds the gradients to bf16 and writes them.
inline bool is_merging(const TmaBackwardParams& p) {
  return !p.dx.half.data || p.dx.carry.data || (p.dy.whole.data || p.dy.carry.data) || p.partial_dx.whole.data;
}
template <Stationary owner>
TmaBackwardParams tma_backward_params(const AttentionBackward& args, const BranchPass& pass,
                                      const RowStatistics& statistics, const SchedulePlan& plan) {
  TmaBackwardParams p{};
  static_cast<BackwardParams&>(p) = backward_params<owner>(args, pass, statistics, plan);
  const BackwardOperands o = operands_of<owner>(args);
  const bool fits = make_tensor_map(o.x, pass.rate, p.x) && make_tensor_map(o.y, pass.rate, p.y) &&
                    make_tensor_map(o.a, pass.rate, p.a) && make_tensor_map(o.b, pass.rate, p.b);
  RING_CHECK(fits, "attention_backward: the TMA does not support these operands");
  p.scheduler = {plan.counter, static_cast<unsigned>(plan.blocks)};
  p.dropout = dropout_params(args.dropout, statistics.keys);
  p.scale *= p.dropout.scale;
  return p;
}

// Statistics of 64 columns in shared memory. Lanes t, t + 4, .. read columns 8n + 2t and 8n + 2t + 1 for all n, so the
// 16 columns of each t are contiguous. The distance from one t to the next is 16 + 4 floats, which avoids bank
// conflicts.
constexpr int kLaneStatistics = 20, kStatistics = 4 * kLaneStatistics;
__device__ inline int statistic_at(int column) {
  return column % 8 / 2 * kLaneStatistics + column / 8 * 2 + column % 2;
}

// Tile sizes, pipeline stages and registers per thread.
template <Stationary owner, int kDim>
struct BackwardShape {
  static constexpr bool kKeys = owner == Stationary::kv;
  // True if the two consumers share 64 keys, because the accumulators of dk and dv do not fit into the registers of one
  // consumer (sm90_backward_wide.cuh). Otherwise each consumer has 64 rows of its own.
  static constexpr bool kShareRows = kKeys && kDim == 256;
  // A tile has 64 columns if keys are stationary or the head dim is 256: the accumulators leave no registers for more.
  static constexpr int kParts = kKeys || kDim == 256 ? 1 : 2, kColumns = kParts * kPart;
  static constexpr int kStages = kParts * kDim == 256 ? 2 : 4;
  // At head dim 256, b has stages and barriers of its own, so that a and b of a tile are each loaded as early as
  // possible. If keys are stationary, two stages of b fit into shared memory; if queries are, one does.
  static constexpr bool kSplitB = kDim == 256;
  static constexpr int kStagesOfB = kSplitB && !kKeys ? 1 : kStages;
  // kConsumers: blocks of 64 rows per job. kGroups: warp groups of consumers.
  static constexpr int kConsumers = kShareRows ? 1 : 2, kGroups = 2;
  static constexpr int kRows = kGroupRows * kConsumers, kWarps = kGroupWarps * kGroups;
  static constexpr int kProducerRegisters = kShareRows ? 56 : kKeys ? 24 : 40;
  static constexpr int kConsumerRegisters = kShareRows ? 224 : kKeys ? 240 : 232;
  // True if registers suffice to hold x and y too. GEMMs with 64 columns are limited by shared-memory bandwidth, and
  // with x and y in registers they read only one operand from shared memory. Statistics are then loaded while S is
  // computed.
  static constexpr bool kOwnInRegisters = kKeys && kDim == 64;
  // Buffers for x and y. If there are two, or if this job's x and y are in registers, the next job's x and y are loaded
  // from the start of this job on. Otherwise they are loaded after this job's last tile.
  static constexpr int kOwnStages = kDim == 64 && !kKeys ? 2 : 1;
  // Keeps the GEMM of dx in flight while the GEMMs of the next tile are issued.
  static constexpr bool kOverlapTiles = kDim == 64;
};

// P of 64 keys and 64 queries in f32, which consumer 0 hands to consumer 1. Each lane of consumer 1 reads what the same
// lane of consumer 0 has written.
struct SharedWeights {
  float4 of_lane[kPart / 8][kGroup];
  Barrier full, empty;
  __device__ void init() { full.init(kGroupWarps), empty.init(kGroupWarps); }
};

template <Stationary owner, int kDim>
struct BackwardMemory : BackwardShape<owner, kDim> {
  using Shape = BackwardShape<owner, kDim>;
  using Shape::kKeys, Shape::kShareRows, Shape::kSplitB, Shape::kStages, Shape::kStagesOfB, Shape::kColumns,
      Shape::kRows;
  using Shape::kWarps, Shape::kConsumers, Shape::kOwnStages;
  static constexpr int kStreamed = !kKeys && kDim == 256 ? 1 : kStatistics;  // not used if queries are stationary
  SmemTile<Bf16, kRows, kDim> x[kOwnStages], y[kOwnStages];
  SmemTile<Bf16, kColumns, kDim> a[kStages], b[kStagesOfB];
  float lse2[kStages][kStreamed], delta[kStages][kStreamed];  // statistics of the streamed queries
  ColumnKeys<kColumns> dropout_keys[kStages];
  Barrier own_full[kOwnStages], own_empty[kOwnStages], full[kStages], empty[kStages];
  TileCoord tiles[kStages];
  static constexpr int kJobs = 2 + kOwnStages;  // the previous job, the current one, and those being loaded
  Job<kConsumers> jobs[kJobs];
  std::conditional_t<kSplitB, Barrier, NoTile> b_full[kStagesOfB], b_empty[kStagesOfB];
  std::conditional_t<kShareRows, SharedWeights, NoTile> weights;

  __device__ void init() {
    for (int i = 0; i < kOwnStages; ++i) own_full[i].init(1), own_empty[i].init(kWarps);
    for (int s = 0; s < kStages; ++s) full[s].init(32), empty[s].init(kWarps);
    if constexpr (kSplitB)
      for (int s = 0; s < kStagesOfB; ++s) b_full[s].init(1), b_empty[s].init(kWarps);
    if constexpr (kShareRows) weights.init();
    fence_barrier_init();
  }
};

// lse2, delta and, with dropout, dropout keys of the 64 queries from `column` on, two per lane. A query that is out of
// range has lse2 = inf, so that its P is 0.
template <bool drops>
struct StreamedStatistics {
  float lse2[2], delta[2];
  std::uint32_t key[2];
  __device__ void load(const TmaBackwardParams& p, const HeadSegment& s, int column, int head) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = column + static_cast<int>(threadIdx.x) + 32 * i;
      const bool exists = j >= s.q_first && j < s.q_end;
      const std::int64_t at = head * p.tokens + s.q_row + std::int64_t{j} * s.rate;
      lse2[i] = exists ? p.lse2[at] : INFINITY;
      delta[i] = exists ? p.delta[at] : 0.0f;
      if constexpr (drops) key[i] = exists ? p.dropout.keys[at] : 0;
    }
  }
  template <class Keys>
  __device__ void store(float* to_lse2, float* to_delta, Keys& keys) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = statistic_at(lane() + 32 * i);
      to_lse2[at] = lse2[i], to_delta[at] = delta[i];
      if constexpr (drops) keys.at(lane() + 32 * i) = key[i];
    }
  }
};

// Fetches the next work item for all lanes of a warp.
__device__ inline unsigned next_work(const TileScheduler& scheduler) {
  return static_cast<unsigned>(uniform(threadIdx.x == 0 ? static_cast<int>(scheduler.fetch()) : 0));
}

// Fills in `job` from a work item. Called by a whole warp. Returns false if the item's block of rows has no valid row.
template <Stationary owner, int kConsumers>
__device__ inline bool begin_job(Job<kConsumers>& job, const TmaBackwardParams& p, const CtaCoord& at) {
  __syncwarp();
  bool exists = false;
  if (lane() == 0) {
    const int kv_head = owner == Stationary::kv ? at.head : at.head / p.group;
    job.segment = HeadSegment(p.pass, at.piece, p.pass.offset(kv_head));
    exists = describe<owner>(job, p.work, at);
  }
  __syncwarp();  // the job is visible to all lanes
  return uniform(exists);
}

// Issues the TMA loads of a job's rows of x and y. Called by a warp.
template <Stationary owner, class Memory>
__device__ inline void load_own(const TmaBackwardParams& p, Memory& m, const Job<Memory::kConsumers>& job,
                                PipelineState<Memory::kOwnStages>& pipe) {
  const TmaRows rows(owner == Stationary::kv ? job.segment.k_row : job.segment.q_row, job.segment.rate);
  const int head = uniform(job.head), row = uniform(job.row), stage = pipe.index;
  Barrier& full = m.own_full[stage];
  m.own_empty[stage].wait(pipe.phase ^ 1);
  expect_tx(full, m.x[stage], m.y[stage]);
  for (int c = 0; c < Memory::kConsumers; ++c) {
    tma_load_rows(row_block<kPart>(m.x[stage].view(), c), p.x, rows, head, row + kPart * c, full);
    tma_load_rows(row_block<kPart>(m.y[stage].view(), c), p.y, rows, head, row + kPart * c, full);
  }
  pipe.advance();
}

template <Stationary owner, int kDim, bool drops>
struct BackwardProducer {
  using Memory = BackwardMemory<owner, kDim>;
  using OwnerJob = Job<Memory::kConsumers>;
  static constexpr bool kKeys = owner == Stationary::kv;
  // Loads the statistics of the next tile before the TMA loads of this one are issued: faster at head dim 64 only.
  static constexpr bool kStatisticsFirst = kKeys && kDim == 64;
  const TmaBackwardParams& p;
  Memory& m;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  PipelineState<Memory::kStagesOfB> b_pipe;

  __device__ void run() {
    int n = 0;
    unsigned next = next_work(p.scheduler);
    for (unsigned index = next; index < p.scheduler.blocks; index = next) {
      next = next_work(p.scheduler);  // fetched long before it is needed
      OwnerJob& job = m.jobs[n % Memory::kJobs];
      if (!begin_job<owner>(job, p, p.work[index])) continue;
      load_own<owner>(p, m, job, own_pipe);
      const int own_head = uniform(job.head), heads = kKeys ? p.group : 1;
      const int first_head = kKeys ? own_head * p.group : own_head / p.group;
      for (int i = 0; i < heads; ++i) load_tiles(job, first_head + i);
      m.empty[pipe.index].wait(pipe.phase ^ 1);
      if constexpr (Memory::kSplitB) {
        m.b_empty[b_pipe.index].wait(b_pipe.phase ^ 1);
        if (lane() == 0) m.b_full[b_pipe.index].arrive();
        b_pipe.advance();
      }
      if (lane() == 0) m.tiles[pipe.index].marks = kNoTile;
      m.full[pipe.index].arrive();
      pipe.advance();
      ++n;
    }
    if (lane() != 0) return;
    m.jobs[n % Memory::kJobs].head = -1;
    m.own_empty[own_pipe.index].wait(own_pipe.phase ^ 1);
    m.own_full[own_pipe.index].arrive();
  }

 private:
  // Loads b of a tile into its own stage.
  __device__ void load_b(const TmaRows& rows, int head, int column) {
    Barrier& full = m.b_full[b_pipe.index];
    m.b_empty[b_pipe.index].wait(b_pipe.phase ^ 1);
    expect_tx(full, m.b[b_pipe.index]);
    tma_load_rows(m.b[b_pipe.index].view(), p.b, rows, head, column, full);
    b_pipe.advance();
  }
  __device__ void load_tiles(const OwnerJob& job, int head) {
    const HeadSegment& s = job.segment;
    const TmaRows rows(kKeys ? s.q_row : s.k_row, s.rate);
    TileStream<Memory::kParts, Memory::kConsumers> stream(job, columns_of<owner>(job, p.work));
    TileCoord next;
    StreamedStatistics<drops> statistics;
    bool more = false;
    const auto find_next = [&] {
      more = stream.next(next);
      if (kKeys && more) statistics.load(p, s, next.column[0], head);
    };
    find_next();
    for (; more; pipe.advance()) {
      const int stage = pipe.index;
      const TileCoord tile = next;
      Barrier& full = m.full[stage];
      // If keys are stationary, b of an earlier tile is freed before its a, otherwise after it.
      if constexpr (Memory::kSplitB && kKeys) load_b(rows, head, tile.column[0]);
      m.empty[stage].wait(pipe.phase ^ 1);
      if constexpr (kKeys)
        statistics.store(m.lse2[stage], m.delta[stage], m.dropout_keys[stage]);
      else if constexpr (drops)
        m.dropout_keys[stage].store(s, tile);
      if (lane() == 0) m.tiles[stage] = tile;
      if constexpr (kStatisticsFirst) find_next();
      if constexpr (Memory::kSplitB) {
        expect_tx(full, m.a[stage]);
        tma_load_rows(m.a[stage].view(), p.a, rows, head, tile.column[0], full);
        if (lane() != 0) full.arrive();
        if constexpr (!kKeys) load_b(rows, head, tile.column[0]);
      } else {
        expect_tx(full, m.a[stage], m.b[stage]);
#pragma unroll
        for (int h = 0; h < Memory::kParts; ++h) {
          tma_load_rows(row_block<kPart>(m.a[stage].view(), h), p.a, rows, head, tile.column[h], full);
          tma_load_rows(row_block<kPart>(m.b[stage].view(), h), p.b, rows, head, tile.column[h], full);
        }
        if (lane() != 0) full.arrive();
      }
      if constexpr (!kStatisticsFirst) find_next();
    }
  }
};

}  // namespace ring::cuda::sm90
