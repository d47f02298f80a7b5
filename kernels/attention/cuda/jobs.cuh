#pragma once
// Jobs of persistent thread blocks: which rows a thread block works on next, and the tiles of columns that these rows
// see. A thread block has three or four warp groups. In the first one, a producer warp walks the tile list and issues
// loads; the other groups are consumers, each with 64 rows, that run the GEMMs. While the epilogue of one job still
// runs, the loads of the next job are under way. Nothing here depends on the instructions that compute the GEMMs.

#include "kernels/attention/cuda/tile_schedule.cuh"
#include "kernels/cuda/device/tensor_copy.cuh"

namespace ring::cuda::persistent {

constexpr int kGroup = 128, kGroupWarps = kGroup / 32;
constexpr int kGroupRows = 64;  // rows of the stationary operand per consumer
// kPart: columns of one part of a tile, loaded at once. kMaxParts: maximum parts per tile.
constexpr int kPart = 64, kMaxParts = 2;
constexpr int threads_of(int consumers) { return kGroup * (1 + consumers); }

// Returns lane 0's x in all lanes. The compiler then knows that the value is warp-uniform, and keeps it and everything
// computed from it alone in uniform registers, which descriptors of the tensor cores require.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// A job: the block of rows that a thread block works on next. The producer warp group writes
// it, and the consumers read it.
template <int kConsumers>
struct Job {
  static constexpr int kRows = kGroupRows * kConsumers;
  HeadSegment segment;
  TileBounds reach[kConsumers];  // columns that the rows of each consumer see
  int row, first, end;           // row: the thread block's first row; rows [first, end) are valid
  int head, slot;                // head < 0: no more jobs; slot: see CtaCoord
  int begin, end_entry;          // entries of the block list, if the pattern has lists
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }
// Returns threadIdx.x, which the compiler must read again at each call. Use it in epilogues. Addresses that depend on
// threadIdx.x itself are computed before the loop over jobs, spilled, and loaded from the L2 cache in every epilogue.
__device__ inline int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Columns of a tile: the first column of each part, and `marks`. Part p has bits 8 p to 8 p + 7 of `marks`: bit 8 p + c
// is set if consumer c has any unmasked pair in the part, and bit 8 p + 4 + c if none of its pairs needs a mask. A
// missing part repeats the column of the first part and has no bit set.
struct TileCoord {
  int column[kMaxParts];
  int marks;  // < 0: sentinel, the job has no more tiles
};
constexpr int kNoTile = -1;
// Stores the query head, on which the tile's dropout keys depend, in the field of the second part's column. Valid only
// for tiles of one part.
__device__ inline TileCoord with_head(const TileCoord& tile, int head) { return {{tile.column[0], head}, tile.marks}; }
__device__ inline int query_head(const TileCoord& tile) { return tile.column[1]; }

__device__ inline bool is_wanted(int marks, int part, int consumer) { return marks >> (8 * part + consumer) & 1; }
__device__ inline bool is_whole(int marks, int part, int consumer) { return marks >> (8 * part + 4 + consumer) & 1; }
// Tests a tile of kParts parts. any_wanted: the consumer has at least one unmasked (query, key) pair; all_whole: no
// pair of the consumer needs a mask.
template <int kParts>
__device__ inline bool any_wanted(int marks, int consumer) {
  return (marks >> consumer & (0x0101 & ((1 << 8 * kParts) - 1))) != 0;  // bit 0 of each part
}
template <int kParts>
__device__ inline bool all_whole(int marks, int consumer) {
  constexpr int kAll = 0x1010 & ((1 << 8 * kParts) - 1);  // bit 4 of each part
  return marks >= 0 && (marks >> consumer & kAll) == kAll;
}

// Hands out the work items of a schedule, one per fetch(). The counter wraps to 0 at the last fetch of the grid.
struct TileScheduler {
  unsigned int* counter;
  unsigned blocks;
  __device__ unsigned fetch() const { return atomicInc(counter, blocks + gridDim.x - 1); }
};

// Ring of jobs that one producer thread fills ahead of the consumers. A slot is refilled once all consumer warps have
// released its previous job and the producer warp has allowed the refill.
template <int kConsumers>
struct Jobs {
  // Number of slots: two for the job being computed and the job being loaded, and a third for the next job if jobs are
  // short. Three consumers are only used for long rows, whose jobs are long.
  static constexpr int kJobs = kConsumers == 3 ? 2 : 3;
  Job<kConsumers> jobs[kJobs];
  TileBounds seen[kJobs];  // columns that at least one row of a job sees
  Barrier full[kJobs], empty[kJobs];

  __device__ void init() {
    for (int i = 0; i < kJobs; ++i) full[i].init(1), empty[i].init(1 + kConsumers * kGroupWarps);
  }
  template <Stationary owner>
  __device__ void describe_all(const TileSchedule& work, const BranchPass& pass, const TileScheduler& scheduler,
                               int group);
};

// Fills in `job`, whose head segment must already be set. If `seen` is not null, stores there the columns that at least
// one row of the block sees. Returns false if the block has no valid row.
template <Stationary owner, int kConsumers>
__device__ inline bool describe(Job<kConsumers>& job, const TileSchedule& work, const CtaCoord& at,
                                TileBounds* seen = nullptr) {
  const HeadSegment& s = job.segment;
  job.row = first_row<owner>(work, s, at, job.kRows);
  job.first = max(job.row, s.first<owner>());
  job.end = min(job.row + job.kRows, s.end<owner>());
  if (job.first >= job.end) return false;
    // Not unrolled for queries: their bounds() has hundreds of instructions, which a kernel fetches when it starts.
#pragma unroll(owner == Stationary::q ? 1 : kConsumers)
  for (int c = 0; c < kConsumers + (seen ? 1 : 0); ++c) {
    const bool all = c == kConsumers;
    const int row = job.row + (all ? 0 : kGroupRows * c), rows = all ? job.kRows : kGroupRows;
    const int first = max(job.first, row), end = min(job.end, row + rows);
    TileBounds& to = all ? *seen : job.reach[c];
    if (first < end)
      to = s.bounds<owner>(first, end);
    else
      to = {0, 0, 0, 0, 0, 0, 0, 0};  // the consumer's rows see no column
  }
  job.head = at.head;
  job.slot = at.slot;
  job.begin = at.begin;
  job.end_entry = at.end;
  return true;
}
// Returns the columns that at least one row of the thread block sees, as a stream.
template <int kConsumers>
__device__ inline ColumnStream columns_of(const Job<kConsumers>& job, const TileSchedule& work,
                                          const TileBounds& seen) {
  CtaCoord at;
  at.begin = job.begin, at.end = job.end_entry;
  return {work, at, seen, kPart};
}
template <Stationary owner, int kConsumers>
__device__ inline ColumnStream columns_of(const Job<kConsumers>& job, const TileSchedule& work) {
  return columns_of(job, work, job.segment.template bounds<owner>(job.first, job.end));
}

// Iterates over the tiles of a job. Called by a converged warp: the lanes test the next 32 blocks of 64 columns at
// once, and blocks in which some consumer has unmasked pairs are returned in ascending order. A single thread would
// need longer for a tile than the consumers do.
template <int kParts, int kConsumers>
class TileStream {
 public:
  __device__ TileStream(const Job<kConsumers>& job, const ColumnStream& columns) : job_(job), columns_(columns) {}

  __device__ bool next(TileCoord& tile) {
    int mark = 0;
    if (!next_part(tile.column[0], mark)) return false;
    tile.marks = mark;
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      tile.column[part] = tile.column[0];
      if (next_part(tile.column[part], mark)) tile.marks |= mark << 8 * part;
    }
    return true;
  }

 private:
  // Returns the cursor `ahead` column blocks after `cursor`, skipping the gap.
  __device__ int after(int cursor, int ahead) const {
    if (columns_.entries) return cursor + ahead;
    const int gap = columns_.gap, gap_end = columns_.gap_end;
    if (cursor >= gap && cursor < gap_end) cursor = gap_end;
    const int to = cursor + ahead * kPart, before = cursor < gap ? (gap - cursor + kPart - 1) / kPart : ahead + 1;
    return ahead < before ? to : to + max(0, gap_end - (cursor + before * kPart));
  }
  __device__ bool ended(int cursor) const { return cursor >= (columns_.entries ? columns_.stop : columns_.end); }
  // Reads the column block at a cursor. Returns false if the cursor is at the end or the block is out of range.
  __device__ bool place(int cursor, int& column, int& states) const {
    if (ended(cursor)) return false;
    column = cursor, states = 0b101010;  // BlockCoverage::wholly (2) for three consumers, 2 bits each
    if (!columns_.entries) return true;
    const std::int32_t entry = columns_.entries[cursor];
    column = list_column(entry), states = entry & 15;
    return column + kPart > columns_.first && column < columns_.end;
  }
  // Returns which half of a list's 128 rows the consumer processes: 0 or 1.
  __device__ int list_half(int consumer) const { return kConsumers == 1 ? job_.row / kGroupRows % 2 : consumer; }
  __device__ void look() {
    int states = 0;
    marks_ = 0;
    if (place(after(columns_.cursor, lane()), column_, states)) {
#pragma unroll
      for (int c = 0; c < kConsumers; ++c)
        if (list_coverage(states, list_half(c)) != BlockCoverage::none && !job_.reach[c].none(column_, kPart))
          marks_ |= (job_.reach[c].all(column_, kPart) ? 0b10001 : 0b00001) << c;  // see TileCoord
    }
    columns_.cursor = after(columns_.cursor, 32);
    left_ = __ballot_sync(0xffffffffu, marks_ != 0);
  }
  // Returns the next 64 columns in which some consumer has unmasked pairs; false at the end.
  __device__ bool next_part(int& column, int& marks) {
    while (left_ == 0) {
      if (ended(columns_.cursor)) return false;
      look();
    }
    const int from = __ffs(static_cast<int>(left_)) - 1;
    left_ &= left_ - 1;
    column = __shfl_sync(0xffffffffu, column_, from);
    marks = __shfl_sync(0xffffffffu, marks_, from);
    return true;
  }

  const Job<kConsumers>& job_;
  ColumnStream columns_;
  int column_ = 0, marks_ = 0;  // first column and marks of the column block that this lane tested
  unsigned left_ = 0;           // bit mask of the tested column blocks that have not been returned yet
};

// Describes jobs until the scheduler has no more work. group: heads of the owner (stationary operand) per KV head.
template <int kConsumers>
template <Stationary owner>
__device__ inline void Jobs<kConsumers>::describe_all(const TileSchedule& work, const BranchPass& pass,
                                                      const TileScheduler& scheduler, int group) {
  for (PipelineState<kJobs> pipe;; pipe.advance()) {
    Job<kConsumers>& job = jobs[pipe.index];
    empty[pipe.index].wait(pipe.phase ^ 1);
    job.head = -1;
    for (unsigned index = scheduler.fetch(); index < scheduler.blocks; index = scheduler.fetch()) {
      const CtaCoord at = work[index];
      job.segment = HeadSegment(pass, at.piece, pass.offset(at.head / group));
      if (describe<owner>(job, work, at, &seen[pipe.index])) break;
    }
    const bool last = job.head < 0;
    full[pipe.index].arrive();
    if (last) return;
  }
}

}  // namespace ring::cuda::persistent
