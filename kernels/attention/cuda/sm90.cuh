#pragma once
// What the forward and the backward for Hopper share. A thread block has three or four warp groups: one warp of the
// first, the producer, walks the index source and asks the copy engine for tiles; the other groups, the consumers,
// multiply, 64 rows each. Blocks are persistent: while the last rows of one job are still being written, the tiles of
// the next one come in.

#include "kernels/attention/cuda/tile_schedule.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/tensor_copy.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace ring::cuda::sm90 {

constexpr int kGroup = 128, kGroupWarps = kGroup / 32;
constexpr int kGroupRows = 64;             // of a consumer
constexpr int kPart = 64, kMostParts = 2;  // columns that are asked for at once; of a tile
constexpr int threads_of(int consumers) { return kGroup * (1 + consumers); }

// Bytes of one panel of `rows` rows, and of a tile of kDim columns.
constexpr int panel_bytes(int rows) { return rows * 128; }
template <int kDim>
constexpr int tile_bytes(int rows) {
  return panel_bytes(rows) * (kDim / 64);
}

// For the TMA: a tensor [N,H,D] seen with every rate-th row of a residue as neighbours (columns, residue, head, row /
// rate), in boxes of 64 columns and 64 rows.
struct TensorMap {
  CUtensorMap map;
};
// False: the tensor does not lend itself (N is no multiple of the rate, alignment).
bool make_tensor_map(const Tensor& t, int rate, TensorMap& to);

// Where the rows of a head segment are in such a view.
struct TmaRows {
  int residue, first;
  __device__ TmaRows(int row, int rate) : residue(row % rate), first(row / rate) {
    if (residue < 0) residue += rate, --first;
  }
};

// Loads kDim columns of 64 samples from `sample` on to panels of `rows` rows. By a converged warp.
template <int kDim>
__device__ inline void tma_load_rows(std::uint32_t to, int rows, const TensorMap& from, const TmaRows& at, int head,
                                     int sample, Barrier& barrier) {
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel)
    tma_load(to + panel * panel_bytes(rows), from.map, panel * 64, at.residue, head, at.first + sample, barrier);
}

// The same in all lanes, and known to be by the compiler, which then keeps it, and what is computed from it alone, in
// registers of the warp: where descriptors of products must be.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// What a block does next, for the consumers.
template <int kConsumers>
struct Job {
  static constexpr int kRows = kGroupRows * kConsumers;
  HeadSegment segment;
  TileBounds reach[kConsumers];  // of each one's rows
  int row, first, end;           // of the block; rows [first, end) exist
  int head, slot;                // head < 0: there is no more
  int begin, end_entry;          // of a list
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % 32; }

// The columns of a tile: where its parts start, and marks, a bit for each part p and consumer c: 8 p + c where the
// consumer has pairs there, 8 p + 4 + c where all pairs count. Parts that are missing repeat the first one, and nobody
// wants them.
struct TilePlace {
  int column[kMostParts];
  int marks;  // < 0: the job has no more tiles
};
constexpr int kNoTile = -1;
// Where tiles have one part, with dropout: whose queries they are.
__device__ inline TilePlace with_head(const TilePlace& tile, int head) { return {{tile.column[0], head}, tile.marks}; }
__device__ inline int query_head(const TilePlace& tile) { return tile.column[1]; }

__device__ inline bool is_wanted(int marks, int part, int consumer) { return marks >> (8 * part + consumer) & 1; }
__device__ inline bool is_whole(int marks, int part, int consumer) { return marks >> (8 * part + 4 + consumer) & 1; }
// Whether some pair of a tile of kParts parts counts for a consumer; whether every one does.
template <int kParts>
__device__ inline bool any_wanted(int marks, int consumer) {
  return (marks >> consumer & (0x0101 & ((1 << 8 * kParts) - 1))) != 0;
}
template <int kParts>
__device__ inline bool all_whole(int marks, int consumer) {
  constexpr int kAll = 0x1010 & ((1 << 8 * kParts) - 1);
  return marks >= 0 && (marks >> consumer & kAll) == kAll;
}

// Hands out a schedule's blocks of work as thread blocks ask for them. The counter returns to 0 with the last request.
struct TileScheduler {
  unsigned int* counter;
  unsigned blocks;
  __device__ unsigned fetch() const { return atomicInc(counter, blocks + gridDim.x - 1); }
};

// Jobs that one thread describes ahead: the next one when the consumers are done with the one that was in its place,
// and the producer allows it.
template <int kConsumers>
struct Jobs {
  // The one being worked on and the one whose tiles come in; and one after that where jobs are short (three consumers
  // are for long rows).
  static constexpr int kJobs = kConsumers == 3 ? 2 : 3;
  Job<kConsumers> jobs[kJobs];
  Barrier full[kJobs], empty[kJobs];

  __device__ void init() {
    for (int i = 0; i < kJobs; ++i) full[i].init(1), empty[i].init(1 + kConsumers * kGroupWarps);
  }
  template <Stationary owner>
  __device__ void describe_all(const TileSchedule& work, const BranchPass& pass, const TileScheduler& scheduler,
                               int group);
};

// Fills in all but the head segment, which is there; false: nothing of the block exists.
template <Stationary owner, int kConsumers>
__device__ inline bool describe(Job<kConsumers>& job, const TileSchedule& work, const CtaCoord& at) {
  const HeadSegment& s = job.segment;
  job.row = first_row<owner>(work, s, at, job.kRows);
  job.first = max(job.row, s.first<owner>());
  job.end = min(job.row + job.kRows, s.end<owner>());
  if (job.first >= job.end) return false;
#pragma unroll
  for (int c = 0; c < kConsumers; ++c) {
    const int row = job.row + kGroupRows * c, first = max(job.first, row), end = min(job.end, row + kGroupRows);
    if (first < end)
      job.reach[c] = s.bounds<owner>(first, end);
    else
      job.reach[c] = {0, 0, 0, 0, 0, 0, 0, 0};  // no column
  }
  job.head = at.head;
  job.slot = at.slot;
  job.begin = at.begin;
  job.end_entry = at.end;
  return true;
}
// The columns of the whole block.
template <Stationary owner, int kConsumers>
__device__ inline ColumnStream columns_of(const Job<kConsumers>& job, const TileSchedule& work) {
  CtaCoord at;
  at.begin = job.begin, at.end = job.end_entry;
  return {work, at, job.segment.template bounds<owner>(job.first, job.end), kPart};
}

// The tiles of a job, for a converged warp: its lanes look at the next 32 places of 64 columns at once, and those in
// which somebody has pairs are given out in their order. A thread alone would take longer for a tile than the
// consumers.
template <int kParts, int kConsumers>
class TileStream {
 public:
  __device__ TileStream(const Job<kConsumers>& job, const ColumnStream& columns) : job_(job), columns_(columns) {}

  __device__ bool next(TilePlace& tile) {
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
  // The cursor `ahead` places further on.
  __device__ int after(int cursor, int ahead) const {
    if (columns_.entries) return cursor + ahead;
    const int gap = columns_.gap, gap_end = columns_.gap_end;
    if (cursor >= gap && cursor < gap_end) cursor = gap_end;
    const int to = cursor + ahead * kPart, before = cursor < gap ? (gap - cursor + kPart - 1) / kPart : ahead + 1;
    return ahead < before ? to : to + max(0, gap_end - (cursor + before * kPart));
  }
  __device__ bool ended(int cursor) const { return cursor >= (columns_.entries ? columns_.stop : columns_.end); }
  // The place at a cursor; false: nothing is there.
  __device__ bool place(int cursor, int& column, int& states) const {
    if (ended(cursor)) return false;
    column = cursor, states = 0b101010;
    if (!columns_.entries) return true;
    const std::int32_t entry = columns_.entries[cursor];
    column = list_column(entry), states = entry & 15;
    return column + kPart > columns_.first && column < columns_.end;
  }
  __device__ void look() {
    int states = 0;
    marks_ = 0;
    if (place(after(columns_.cursor, lane()), column_, states)) {
#pragma unroll
      for (int c = 0; c < kConsumers; ++c)
        if (list_coverage(states, c) != BlockCoverage::none && !job_.reach[c].none(column_, kPart))
          marks_ |= (job_.reach[c].all(column_, kPart) ? 0b10001 : 0b00001) << c;
    }
    columns_.cursor = after(columns_.cursor, 32);
    left_ = __ballot_sync(0xffffffffu, marks_ != 0);
  }
  // The next 64 columns in which somebody has pairs.
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
  int column_ = 0, marks_ = 0;  // of the place that this lane looked at
  unsigned left_ = 0;           // places that were looked at and not yet given out
};

// A lane has 16 of 64 columns, 8n + 2t and 8n + 2t + 1, of each of its two rows: a bit for each of those before `at`,
// which counts from column 2t.
__device__ inline unsigned lane_columns_before(int at) {
  at = min(max(at, 0), kPart);
  return (1u << (at / 8 * 2 + min(at % 8, 2))) - 1;
}

// Columns that a row does not see become -inf. s: of kParts times 64 columns; rows `row` and `row` + 8.
template <Stationary owner, int kParts>
__device__ inline void mask_rows(float (&s)[32 * kParts], const HeadSegment& segment, const TilePlace& tile, int row,
                                 int consumer) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Columns seen = segment.columns<owner>(row + 8 * half);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (is_whole(tile.marks, part, consumer)) continue;
      const int mine = tile.column[part] + lane() % 4 * 2;
      const auto before = [&](int column) { return lane_columns_before(column - mine); };
      unsigned bits = before(seen.end) & ~before(seen.first) & ~(before(seen.hole_end) & ~before(seen.hole));
      if (!is_wanted(tile.marks, part, consumer)) bits = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if ((bits >> i & 1) == 0) s[4 * (part * 8 + i / 2) + 2 * half + i % 2] = -INFINITY;
    }
  }
}

// Until there is no more work. group: of the owner's heads that share a KV head.
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
      if (describe<owner>(job, work, at)) break;
    }
    const bool last = job.head < 0;
    full[pipe.index].arrive();
    if (last) return;
  }
}

// c = a b^T, both K-major in shared memory: rows x kDim and columns x kDim.
template <int kDim, int kSums>
__device__ inline void gemm_ss(float (&c)[kSums], std::uint32_t a, int a_rows, std::uint32_t b, int b_rows) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const int panel = k / 4, inside = k % 4 * 32;
    wgmma_ss(c, desc_k_major(a).after(panel * panel_bytes(a_rows) + inside),
             desc_k_major(b).after(panel * panel_bytes(b_rows) + inside), k > 0);
  }
}
// c += fragments (16 kSteps of the summed index) times a tile whose rows are the summed index.
template <int kSteps, int kSums>
__device__ inline void gemm_rs(float (&c)[kSums], const std::uint32_t (&a)[kSteps][4], std::uint32_t b, int b_rows) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) wgmma_rs(c, a[k], desc_mn_major(b, panel_bytes(b_rows)).after(k * 16 * 128), 1);
}
template <int n>
__device__ inline void clear(float (&c)[n]) {
#pragma unroll
  for (float& x : c) x = 0.0f;
}
// Sums become a left operand.
template <int kSteps>
__device__ inline void as_fragments(std::uint32_t (&p)[kSteps][4], const float (&s)[8 * kSteps]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// The bytes that copies to this barrier will bring. By a converged warp, before it asks for them.
__device__ inline void expect_tx(Barrier& full, int bytes) {
  if (lane() == 0) full.arrive_expect_tx(bytes);
  __syncwarp();
}

// The kernels, one translation unit each. keys: of dropout (dropout.cuh), undefined without.
template <int kDim, int kConsumers, bool drops>
void run_forward(const Attention&, const BranchPass&, const Tensor& keys, const ExecContext&);
template <Stationary owner, int kDim, bool drops>
void run_backward(const AttentionBackward&, const BranchPass&, const RowStatistics&, const ExecContext&);
// Both directions at once, of a pass in which rows see intervals; or lists, with sums of dq in any order.
template <int kDim, bool drops>
void run_fused(const AttentionBackward&, const BranchPass&, const RowStatistics&, const ExecContext&);

// A block's memory, aligned for tiles; whoever launches the kernel asks for kAlignment bytes more.
constexpr int kAlignment = 1024;
template <class Memory>
__device__ inline Memory& aligned(unsigned char* memory) {
  return *reinterpret_cast<Memory*>(memory + (-shared_address(memory) & (kAlignment - 1)));
}

// Blocks of a persistent grid.
std::int64_t grid_blocks(std::int64_t work, const ExecContext&);

}  // namespace ring::cuda::sm90
