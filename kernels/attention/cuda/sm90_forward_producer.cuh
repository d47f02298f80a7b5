#pragma once
// Forward for Hopper: the shared memory of a thread block, and the producer warp.

#include "kernels/attention/cuda/sm90_dropout.cuh"

namespace ring::cuda::sm90 {

// Tile sizes, pipeline stages and registers per thread. The registers of all threads must fit into an SM's 64 Ki.
template <int kDim, int kConsumers>
struct ForwardShape {
  static constexpr int kParts = kDim == 256 ? 1 : 2, kKeys = kParts * kPart;           // parts per tile, keys per tile
  static constexpr int kStages = kDim == 64 ? 4 : 2, kKeyStages = kDim == 64 ? 4 : 3;  // stages of V, stages of K
  // Buffers for queries. With two, the next job's queries are loaded from the start of this job on, and the epilogue
  // stages rows of out in this job's query buffer. With one, the next job's queries are loaded after this job's last
  // scores. The epilogue then stages rows in an empty stage of K and one of V, which the producer passes on.
  static constexpr int kQueryStages = kDim == 256 ? 1 : 2;
  static constexpr int kRows = kGroupRows * kConsumers, kWarps = kGroupWarps * kConsumers;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 72;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 216;
};

struct ForwardParams {
  TensorMap q, k, v;
  Output out;
  float* lse;
  std::int64_t tokens;
  int dim, group;  // group: query heads per KV head
  float factor;    // attention scale * log2(e)
  BranchPass pass;
  TileSchedule work;
  TileScheduler scheduler;
  DropoutParams dropout;
};

template <int kDim, int kConsumers>
struct ForwardMemory : ForwardShape<kDim, kConsumers> {
  using Shape = ForwardShape<kDim, kConsumers>;
  using Shape::kStages, Shape::kKeyStages, Shape::kQueryStages, Shape::kKeys, Shape::kRows, Shape::kWarps;
  static constexpr int kJobs = Jobs<kConsumers>::kJobs;
  using KeyTile = SmemTile<Bf16, kKeys, kDim>;
  SmemTile<Bf16, kRows, kDim> q[kQueryStages];
  KeyTile k[kKeyStages], v[kStages];
  // dropout_keys[s]: dropout keys of the tile whose values are in v[s]. dropout_full signals that the
  // dropout keys are complete, which is earlier than the values.
  ColumnKeys<kKeys> dropout_keys[kStages];
  Barrier q_full[kQueryStages], q_empty[kQueryStages];
  Barrier k_full[kKeyStages], k_empty[kKeyStages], v_full[kStages], v_empty[kStages];
  Barrier dropout_full[kStages];
  TileCoord tiles[kKeyStages];  // tiles[s]: the tile whose keys are in k[s]
  Jobs<kConsumers> jobs;

  // Buffer of job n's queries, and the phase of its barriers.
  __device__ static int q_stage(int n) { return n & (kQueryStages - 1); }
  __device__ static int q_phase(int n) { return n >> (kQueryStages - 1) & 1; }
  __device__ void init() {
    for (int i = 0; i < kQueryStages; ++i) q_full[i].init(1), q_empty[i].init(kWarps);
    for (int s = 0; s < kKeyStages; ++s) k_full[s].init(1), k_empty[s].init(kWarps);
    for (int s = 0; s < kStages; ++s) v_full[s].init(1), v_empty[s].init(kWarps), dropout_full[s].init(1);
    jobs.init();
    fence_barrier_init();
  }
};

// The producer warp. Loads a job's queries, then tiles in the order of their use: K of a tile, then V of the previous
// tile.
template <int kDim, int kConsumers, bool drops>
struct ForwardProducer {
  using Memory = ForwardMemory<kDim, kConsumers>;
  static constexpr int kShortJob = 1024;  // maximum columns of a short job
  const ForwardParams& p;
  Memory& m;
  PipelineState<Memory::kKeyStages> k_pipe;
  PipelineState<Memory::kStages> v_pipe;
  int allowed = Memory::kJobs;  // jobs before this number may be fetched; the first kJobs need no allow()

  __device__ void run() {
    PipelineState<Memory::kJobs> pipe;
    for (int n = 0;; ++n, pipe.advance()) {
      const Job<kConsumers>& job = m.jobs.jobs[pipe.index];
      m.jobs.full[pipe.index].wait(pipe.phase);
      if (uniform(job.head) < 0) return end(n);
      load_job(job, n);
    }
  }

 private:
  __device__ void end(int n) {
    m.q_empty[m.q_stage(n)].wait(m.q_phase(n) ^ 1);
    if (lane() == 0) m.q_full[m.q_stage(n)].arrive();
  }
  // Lets Jobs::describe_all(), which another warp runs, fetch all jobs before number `jobs`. Late fetches balance the
  // last jobs over the SMs, but no consumer must wait for a job. The next job is therefore allowed at the end of this
  // job if there are enough V stages, else at its start. A short job ends before its successor has been described, so
  // it also allows the job after its successor.
  __device__ void allow(int jobs) {
    for (; allowed < jobs; ++allowed)
      if (lane() == 0) m.jobs.empty[allowed % Memory::kJobs].arrive();
  }
  __device__ void load_job(const Job<kConsumers>& job, int n) {
    load_queries(job, n);  // first: a job of one tile ends before the tiles of the next job are found
    const int kv_head = uniform(job.head) / p.group;
    const TmaRows rows(job.segment.k_row, job.segment.rate);
    const ColumnStream columns = columns_of(job, p.work, m.jobs.seen[n % Memory::kJobs]);
    const bool is_short = columns.max_count() <= kShortJob;
    if (is_short || Memory::kStages == 2) allow(n + (is_short ? Memory::kJobs : 2));
    TileStream<Memory::kParts, kConsumers> stream(job, columns);
    TileCoord tile{}, before;  // a job without tiles gets a fully masked one: consumers need no empty case
    stream.next(tile);
    load_keys(tile, rows, kv_head);
    do {
      before = tile;
      if (!stream.next(tile)) tile.marks = kNoTile;
      load_keys(tile, rows, kv_head);
      m.v_empty[v_pipe.index].wait(v_pipe.phase ^ 1);
      if constexpr (drops) store_dropout_keys(job.segment, before);
      load_tile(m.v[v_pipe.index], p.v, before, rows, kv_head, m.v_full[v_pipe.index]);
      v_pipe.advance();
    } while (tile.marks >= 0);
    if constexpr (Memory::kQueryStages == 1) pass_values();
    allow(n + 2);
  }
  __device__ void load_keys(const TileCoord& tile, const TmaRows& rows, int kv_head) {
    Barrier& full = m.k_full[k_pipe.index];
    m.k_empty[k_pipe.index].wait(k_pipe.phase ^ 1);
    if (lane() == 0) {
      m.tiles[k_pipe.index] = tile;
      if (tile.marks < 0) full.arrive();
    }
    if (tile.marks >= 0) load_tile(m.k[k_pipe.index], p.k, tile, rows, kv_head, full);
    k_pipe.advance();
  }
  // Passes an empty stage of V to the consumers, whose epilogue stages rows in it.
  __device__ void pass_values() {
    m.v_empty[v_pipe.index].wait(v_pipe.phase ^ 1);
    if (lane() == 0) {
      m.v_full[v_pipe.index].arrive();
      if constexpr (drops) m.dropout_full[v_pipe.index].arrive();  // keeps the phases of both barriers equal
    }
    v_pipe.advance();
  }
  // Stores a tile's dropout keys and signals the consumers. Requires that the tile's stage of V is free.
  __device__ void store_dropout_keys(const HeadSegment& segment, const TileCoord& tile) {
    m.dropout_keys[v_pipe.index].store(segment, tile);
    __syncwarp();
    if (lane() == 0) m.dropout_full[v_pipe.index].arrive();
  }
  __device__ void load_queries(const Job<kConsumers>& job, int n) {
    const TmaRows rows(job.segment.q_row, job.segment.rate);
    const int head = uniform(job.head), row = uniform(job.row);
    auto& q = m.q[m.q_stage(n)];
    Barrier& full = m.q_full[m.q_stage(n)];
    m.q_empty[m.q_stage(n)].wait(m.q_phase(n) ^ 1);
    expect_tx(full, q);
#pragma unroll
    for (int c = 0; c < kConsumers; ++c)
      tma_load_rows(row_block<kPart>(q.view(), c), p.q, rows, head, row + kPart * c, full);
  }
  __device__ void load_tile(typename Memory::KeyTile& to, const TensorMap& from, const TileCoord& tile,
                            const TmaRows& rows, int head, Barrier& full) {
    expect_tx(full, to);
#pragma unroll
    for (int i = 0; i < Memory::kParts; ++i)
      tma_load_rows(row_block<kPart>(to.view(), i), from, rows, head, tile.column[i], full);
  }
};

}  // namespace ring::cuda::sm90
