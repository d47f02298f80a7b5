#pragma once
// Fused Hopper backward (sm90_fused.cuh): the shared memory of a thread block, the producer warp, and the threads that
// add dq to global memory.

#include "kernels/attention/cuda/query_sums.h"
#include "kernels/attention/cuda/sm90_backward_producer.cuh"
#include "kernels/cuda/device/bulk_reduce.cuh"

namespace ring::cuda::sm90 {

// x, y = k, v; a, b = q, dout.
struct FusedParams : TmaBackwardParams {
  float* dq_sums;      // accumulators [Hq,kDim/64,N,64], rows grouped by residue (query_sums.h)
  unsigned* dq_turns;  // [Hq,kDim/64,N]; the element of a tile's first row counts the key blocks that have added to it
  int residue_rows;    // rows per residue modulo the rate: N / rate
  bool in_order;       // true: key blocks add in ascending order; false: in any order after the first one
};

// A tile of 64 queries whose dq this thread block adds to.
struct QueryTile {
  int head, row;  // row: row in the dq accumulators
  int rows;       // number of valid rows; < 0 if there are no more tiles
  int first;      // first valid row of the tile
  int turn;       // number of key blocks that add before this one
};
constexpr int kAnyTurn = -1;  // value of `turn` if dq_sums was zeroed before: blocks add in any order, without turns

// Arrives at the barrier once for the whole warp.
__device__ inline void release(Barrier& barrier) {
  __syncwarp();  // all lanes have finished reading or writing
  if (lane() == 0) barrier.arrive();
}

// 64 queries x 64 columns of dq, in the swizzled layout of the accumulators in global memory (swizzled_piece()).
using QuerySumTile = SmemTile<float, kQueryTile, kSumColumns, Swizzle::none>;

template <int kDim>
struct FusedMemory {
  // True if a third consumer computes dq. Otherwise registers do not suffice for one, and each of the two key consumers
  // computes 64 columns of dq.
  static constexpr bool kThird = kDim == 64;
  static constexpr int kStages = kThird ? 4 : 2, kOwnStages = kThird ? 2 : 1, kGradStages = 2;
  // Threads that add dq to global memory, dq stages per thread, and dq stages in total.
  static constexpr int kSumThreads = kThird ? 3 : 2, kSumEach = kThird ? 1 : 2, kSumStages = kSumThreads * kSumEach;
  static constexpr int kConsumers = 2, kRows = kGroupRows * kConsumers, kColumns = kPart, kParts = 1;
  static constexpr int kWarps = kGroupWarps * kConsumers;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kThird ? 208 : 240, kSumRegisters = 72;
  static constexpr int kThreads = threads_of(kConsumers + (kThird ? 1 : 0));
  // All threads of a block start with the same number of registers, a multiple of 8. setmaxnreg would wait forever if
  // the warpgroups asked for more registers in total than the block has.
  static_assert(kGroup * (kProducerRegisters + kConsumers * kConsumerRegisters + (kThird ? kSumRegisters : 0)) <=
                kThreads * (65536 / kThreads / 8 * 8));
  SmemTile<Bf16, kRows, kDim> x[kOwnStages], y[kOwnStages];
  SmemTile<Bf16, kColumns, kDim> a[kStages], b[kStages];
  SmemTile<Bf16, kRows, kColumns> ds[kGradStages];  // dS; its rows are keys
  QuerySumTile dq[kSumStages];
  float lse2[kStages][kStatistics], delta[kStages][kStatistics];
  // Dropout keys of the streamed queries. At head dim 128, shared memory has no space for them, and the consumers load
  // them from global memory.
  std::conditional_t<kThird, ColumnKeys<kColumns>, NoTile> dropout_keys[kStages];
  Barrier own_full[kOwnStages], own_empty[kOwnStages], full[kStages], empty[kStages];
  Barrier ds_full[kGradStages], ds_empty[kGradStages], dq_full[kSumStages], dq_empty[kSumStages];
  TileCoord tiles[kStages];
  // Size of `queries`, a ring indexed by tile number. It holds each tile from the time the tile is
  // loaded until its dq has been added.
  static constexpr int kPlaces = kThird ? 16 : 8;
  QueryTile queries[kPlaces];
  static constexpr int kJobs = 2 + kOwnStages;  // the previous job, the current one, and those being loaded
  Job<kConsumers> jobs[kJobs];

  __device__ void init() {
    constexpr int kThirdWarps = kThird ? kGroupWarps : 0, kAll = kWarps + kThirdWarps;
    for (int i = 0; i < kOwnStages; ++i) own_full[i].init(1), own_empty[i].init(kAll);
    for (int s = 0; s < kStages; ++s) full[s].init(32), empty[s].init(kAll);
    for (int s = 0; s < kGradStages; ++s) ds_full[s].init(kWarps), ds_empty[s].init(kThird ? kGroupWarps : kWarps);
    for (int s = 0; s < kSumStages; ++s) dq_full[s].init(kGroupWarps), dq_empty[s].init(1);
    fence_barrier_init();
  }
};

// Returns true if all rows of a consumer are valid. Otherwise a mask is needed, since rows that are out of range must
// add nothing to dq.
template <int kConsumers>
__device__ inline bool is_complete(const Job<kConsumers>& job, int consumer) {
  const int row = job.row + kGroupRows * consumer;
  return row >= job.first && row + kGroupRows <= job.end;
}

// Iterates over the tiles of a block list. Thread blocks add dq of these tiles in any order (kAnyTurn).
template <int kConsumers>
class ListedTiles {
 public:
  __device__ ListedTiles(const Job<kConsumers>& job, const TileSchedule& work)
      : job_(job), stream_(job, columns_of<Stationary::kv>(job, work)) {}
  __device__ bool next(TileCoord& at, int& turn) {
    turn = kAnyTurn;
    if (!stream_.next(at)) return false;
#pragma unroll
    for (int c = 0; c < kConsumers; ++c)
      if (!is_complete(job_, c)) at.marks &= ~(0b10000 << c);  // some pairs need a mask
    return true;
  }

 private:
  const Job<kConsumers>& job_;
  TileStream<1, kConsumers> stream_;
};

// Iterates in descending order over the tiles of 64 queries that see a block of keys. Called by a converged warp: the
// lanes test the next 32 tiles at once.
template <int kConsumers>
class QueryTiles {
 public:
  __device__ explicit QueryTiles(const Job<kConsumers>& job) : job_(job) {
    const HeadSegment& s = job.segment;
    const TileBounds seen = s.bounds<Stationary::kv>(job.first, job.end);
    first_ = seen.first < seen.end ? (seen.first - s.q_first) / kPart : 0;
    end_ = seen.first < seen.end ? (seen.end - s.q_first + kPart - 1) / kPart : 0;
  }
  // turn: position of this block of keys among the blocks that add to the tile.
  __device__ bool next(TileCoord& at, int& turn) {
    if (end_ <= first_) return false;
    if (given_ == 32) look();
    at.column[0] = __shfl_sync(0xffffffffu, column_, given_);
    at.marks = __shfl_sync(0xffffffffu, marks_, given_);
    turn = __shfl_sync(0xffffffffu, turn_, given_);
    ++given_, --end_;
    return true;
  }

 private:
  __device__ void look() {
    const HeadSegment& s = job_.segment;
    given_ = 0;
    column_ = s.q_first + kPart * (end_ - 1 - lane());
    if (end_ - 1 - lane() < first_) return;
    marks_ = 0;
#pragma unroll
    for (int c = 0; c < kConsumers; ++c)
      if (!job_.reach[c].none(column_, kPart))
        marks_ |= (is_complete(job_, c) && job_.reach[c].all(column_, kPart) ? 0b10001 : 0b00001) << c;
    // Blocks of keys add to a tile's dq in ascending order. Every block from the tile's first to its last visible key
    // has pairs with the tile, so the turn is a difference of block numbers.
    const TileBounds seen = s.bounds<Stationary::q>(column_, min(column_ + kPart, s.q_end));
    turn_ = (job_.row - s.k_first) / job_.kRows - (max(seen.first, seen.gap_end) - s.k_first) / job_.kRows;
  }

  const Job<kConsumers>& job_;
  int first_, end_, given_ = 32;           // remaining tiles; given_: how many of the 32 tested tiles were returned
  int column_ = 0, marks_ = 0, turn_ = 0;  // column, marks and turn of the tile that this lane tested
};

template <int kDim, bool drops>
struct FusedProducer {
  using Memory = FusedMemory<kDim>;
  const FusedParams& p;
  Memory& m;
  PipelineState<Memory::kStages> pipe;
  PipelineState<Memory::kOwnStages> own_pipe;
  int count = 0;  // number of tiles loaded so far

  __device__ void run() {
    int n = 0;
    // Work items are not prefetched: other thread blocks wait for the dq that a fetched block of keys adds.
    for (unsigned index = next_work(p.scheduler); index < p.scheduler.blocks; index = next_work(p.scheduler)) {
      Job<Memory::kConsumers>& job = m.jobs[n % Memory::kJobs];
      if (!begin_job<Stationary::kv>(job, p, p.work[index])) continue;
      load_own<Stationary::kv>(p, m, job, own_pipe);
      for (int i = 0; i < p.group; ++i) {
        const int head = uniform(job.head) * p.group + i;
        if (p.work.entries)
          load_tiles(job, head, ListedTiles(job, p.work));
        else
          load_tiles(job, head, QueryTiles(job));
      }
      m.empty[pipe.index].wait(pipe.phase ^ 1);
      if (lane() == 0) m.tiles[pipe.index].marks = kNoTile;
      m.full[pipe.index].arrive();
      pipe.advance();
      ++n;
    }
    if (lane() == 0) {
      m.jobs[n % Memory::kJobs].head = -1;
      for (int i = 0; i < Memory::kSumThreads; ++i) m.queries[(count + i) % Memory::kPlaces].rows = -1;
    }
    m.own_empty[own_pipe.index].wait(own_pipe.phase ^ 1);
    if (lane() == 0) m.own_full[own_pipe.index].arrive();
  }

 private:
  template <class Tiles>
  __device__ void load_tiles(const Job<Memory::kConsumers>& job, int head, Tiles tiles) {
    const HeadSegment& s = job.segment;
    const TmaRows rows(s.q_row, s.rate);
    const int sums_row = uniform(rows.residue * p.residue_rows + rows.first);
    const int q_first = uniform(s.q_first), q_end = uniform(s.q_end);
    TileCoord tile;
    int turn;
    StreamedStatistics<drops && Memory::kThird> statistics;
    bool more = tiles.next(tile, turn);
    if (more) statistics.load(p, s, tile.column[0], head);
    for (; more; pipe.advance()) {
      const int stage = pipe.index, column = tile.column[0];
      Barrier& full = m.full[stage];
      m.empty[stage].wait(pipe.phase ^ 1);
      statistics.store(m.lse2[stage], m.delta[stage], m.dropout_keys[stage]);
      if (lane() == 0) {
        m.tiles[stage] = drops && !Memory::kThird ? with_head(tile, head) : tile;
        const int first = max(column, q_first), end = min(column + kPart, q_end);
        m.queries[count % Memory::kPlaces] = {head, sums_row + first, end - first, first - column, turn};
      }
      ++count;
      more = tiles.next(tile, turn);
      if (more) statistics.load(p, s, tile.column[0], head);
      expect_tx(full, m.a[stage], m.b[stage]);
      tma_load_rows(m.a[stage].view(), p.a, rows, head, column, full);
      tma_load_rows(m.b[stage].view(), p.b, rows, head, column, full);
      if (lane() != 0) full.arrive();
    }
  }
};

// Adds dq to global memory, after the blocks of keys that come before this one. Each of kSumThreads threads runs this:
// with a third consumer it adds every third tile, otherwise 64 columns of every tile.
template <int kDim>
__device__ void add_queries(const FusedParams& p, FusedMemory<kDim>& m, int thread) {
  using Memory = FusedMemory<kDim>;
  PipelineState<Memory::kSumEach> pipe;
  for (int tile = Memory::kThird ? thread : 0;; tile += Memory::kThird ? Memory::kSumThreads : 1, pipe.advance()) {
    const int stage = thread + Memory::kSumThreads * pipe.index;
    m.dq_full[stage].wait(pipe.phase);
    const QueryTile at = m.queries[tile % Memory::kPlaces];
    if (at.rows < 0) return;
    const int part = Memory::kThird ? at.head : at.head * Memory::kSumThreads + thread;
    const std::int64_t row = part * p.tokens + at.row;
    const int bytes = at.rows * kSumColumns * static_cast<int>(sizeof(float));
    const float* from = m.dq[stage].row(at.first);
    if (at.turn == 0) {
      bulk_store(p.dq_sums + row * kSumColumns, from, bytes);
    } else {
      if (p.in_order)
        await_turn(p.dq_turns + row, static_cast<unsigned>(at.turn));
      else if (at.turn != kAnyTurn)
        await_any_turn(p.dq_turns + row);
      bulk_add(p.dq_sums + row * kSumColumns, from, bytes);
    }
    bulk_commit();
    bulk_wait_read();
    m.dq_empty[stage].arrive();
    if (at.turn != 0 && !p.in_order) continue;
    bulk_wait_written();
    give_turn(p.dq_turns + row, static_cast<unsigned>(at.turn) + 1);
  }
}

}  // namespace ring::cuda::sm90
