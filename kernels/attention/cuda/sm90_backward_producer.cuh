#pragma once
// The backward for Hopper: what its blocks hold, and the warp that asks for tiles. sm90_backward.cuh says what x, y, a
// and b are.

#include "kernels/attention/cuda/sm90.cuh"

namespace ring::cuda::sm90 {

struct BackwardParams {
  TensorMap x, y, a, b;
  Output dx, dy;                  // dy: owning keys
  Output partial_dx, partial_dy;  // of the shares of a split list: a row for each slot and row of a tile
  const float *lse2, *delta;      // [Hq,N]
  std::int64_t tokens;
  int dim, group;
  float factor, scale;  // from a product to a power of two; of the scores
  BranchPass pass;
  TileSchedule work;
  TileScheduler scheduler;
};

// A block's measures.
template <Stationary owner, int kDim>
struct BackwardShape {
  static constexpr bool kKeys = owner == Stationary::kv;
  // 64 columns where sums of both gradients leave no registers for more.
  static constexpr int kParts = kKeys ? 1 : 2, kColumns = kParts * kPart;
  static constexpr int kStages = kParts * kDim == 256 ? 2 : 4;
  static constexpr int kConsumers = 2, kRows = kGroupRows * kConsumers, kWarps = kGroupWarps * kConsumers;
  static constexpr int kProducerRegisters = kKeys ? 24 : 40, kConsumerRegisters = kKeys ? 240 : 232;
  // Where registers are left, they hold x and y, too: products with 64 columns then read one operand only from shared
  // memory, whose bandwidth is their limit. Statistics are loaded while S is computed.
  static constexpr bool kOwnInRegisters = kKeys && kDim == 64;
  // x and y of the next job come in during this one: from the start where registers hold this one's.
  static constexpr int kOwnStages = kDim == 64 && !kKeys ? 2 : 1;
  // And the products of dx stay under way while those of the next tile are queued.
  static constexpr bool kOverlapTiles = kDim == 64;
};

template <Stationary owner, int kDim>
struct BackwardMemory : BackwardShape<owner, kDim> {
  using Shape = BackwardShape<owner, kDim>;
  using Shape::kStages, Shape::kColumns, Shape::kRows, Shape::kWarps, Shape::kConsumers, Shape::kOwnStages;
  static constexpr int kTile = tile_bytes<kDim>(kColumns), kOwn = tile_bytes<kDim>(kRows);
  unsigned char x[kOwnStages][kOwn], y[kOwnStages][kOwn], a[kStages][kTile], b[kStages][kTile];
  float lse2[kStages][kColumns], delta[kStages][kColumns];  // of streamed queries
  Barrier own_full[kOwnStages], own_empty[kOwnStages], full[kStages], empty[kStages];
  TilePlace tiles[kStages];
  static constexpr int kJobs = 2 + kOwnStages;  // the one before, this one, and those whose tiles come in
  Job<kConsumers> jobs[kJobs];

  __device__ void init() {
    for (int i = 0; i < kOwnStages; ++i) own_full[i].init(1), own_empty[i].init(kWarps);
    for (int s = 0; s < kStages; ++s) full[s].init(32), empty[s].init(kWarps);
    fence_barrier_init();
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
__device__ inline unsigned next_work(const TileScheduler& scheduler) {
  return static_cast<unsigned>(uniform(threadIdx.x == 0 ? static_cast<int>(scheduler.fetch()) : 0));
}

// One warp.
template <Stationary owner, int kDim>
__device__ void produce(const BackwardParams& p, BackwardMemory<owner, kDim>& m) {
  using Memory = BackwardMemory<owner, kDim>;
  constexpr bool kKeys = owner == Stationary::kv;
  const bool leader = threadIdx.x == 0;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  int n = 0;
  unsigned next = next_work(p.scheduler);
  for (unsigned index = next; index < p.scheduler.blocks; index = next) {
    next = next_work(p.scheduler);  // fetched long before it is needed
    const CtaCoord at = p.work[index];
    Job<Memory::kConsumers>& job = m.jobs[n % Memory::kJobs];
    __syncwarp();
    bool exists = false;
    if (leader) {
      job.segment = HeadSegment(p.pass, at.piece, p.pass.offset(kKeys ? at.head : at.head / p.group));
      exists = describe<owner>(job, p.work, at);
    }
    __syncwarp();  // the job is there
    if (!uniform(exists)) continue;
    const HeadSegment& segment = job.segment;
    const TmaRows own(kKeys ? segment.k_row : segment.q_row, segment.rate);
    const TmaRows streamed(kKeys ? segment.q_row : segment.k_row, segment.rate);
    const int own_head = uniform(job.head), row = uniform(job.row);
    Barrier& own_full = m.own_full[own_pipe.index];
    m.own_empty[own_pipe.index].wait(own_pipe.phase ^ 1);
    expect_tx(own_full, 2 * Memory::kOwn);
    for (int c = 0; c < Memory::kConsumers; ++c) {
      const int offset = panel_bytes(kGroupRows) * c, first = row + kGroupRows * c;
      tma_load_rows<kDim>(shared_address(m.x[own_pipe.index]) + offset, Memory::kRows, p.x, own, own_head, first,
                          own_full);
      tma_load_rows<kDim>(shared_address(m.y[own_pipe.index]) + offset, Memory::kRows, p.y, own, own_head, first,
                          own_full);
    }
    own_pipe.advance();
    const int first_head = kKeys ? own_head * p.group : own_head / p.group;
    const int end_head = first_head + (kKeys ? p.group : 1);
    for (int head = first_head; head <= end_head; ++head) {
      TileStream<Memory::kParts, Memory::kConsumers> stream(job, columns_of<owner>(job, p.work));
      for (;;) {
        TilePlace tile;
        const bool more = head < end_head && stream.next(tile);
        if (!more && head < end_head) break;
        if (!more) tile.marks = kNoTile;
        StreamedStatistics statistics;
        if (kKeys && more) statistics.load(p, segment, tile.column[0], head);
        Barrier& full = m.full[pipe.index];
        m.empty[pipe.index].wait(pipe.phase ^ 1);
        if (kKeys && more) statistics.store(m.lse2[pipe.index], m.delta[pipe.index]);
        if (leader) m.tiles[pipe.index] = tile;
        if (more) {
          expect_tx(full, 2 * Memory::kTile);
#pragma unroll
          for (int h = 0; h < Memory::kParts; ++h) {
            const int offset = panel_bytes(kPart) * h;
            tma_load_rows<kDim>(shared_address(m.a[pipe.index]) + offset, Memory::kColumns, p.a, streamed, head,
                                tile.column[h], full);
            tma_load_rows<kDim>(shared_address(m.b[pipe.index]) + offset, Memory::kColumns, p.b, streamed, head,
                                tile.column[h], full);
          }
        }
        if (!more || !leader) full.arrive();
        pipe.advance();
        if (!more) break;
      }
    }
    ++n;
  }
  if (leader) {
    m.jobs[n % Memory::kJobs].head = -1;
    m.own_empty[own_pipe.index].wait(own_pipe.phase ^ 1);
    m.own_full[own_pipe.index].arrive();
  }
}

}  // namespace ring::cuda::sm90
