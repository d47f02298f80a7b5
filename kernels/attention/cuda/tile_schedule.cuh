#pragma once
// Divides the work of the CUDA attention kernels. A thread block owns a block of rows (queries, or keys and values) of
// one head of one segment pair, and streams column blocks of the other side. A ColumnStream decides at run time which
// columns are streamed; the head segment's TileBounds and Columns decide which of their pairs are masked.

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/cuda/lists.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/passes.h"
#include "kernels/cuda/launch.h"

namespace ring::cuda {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// A tensor [N,H,D] with unit last stride.
template <class T>
struct HeadsOf {
  T* data;
  std::int64_t row, head;  // strides, in elements
  __device__ T* at(std::int64_t token, int h) const { return data + token * row + h * head; }
};
template <class T>
HeadsOf<T> heads_of(const Tensor& t) {
  if (!t.defined()) return {};
  return {reinterpret_cast<T*>(t.raw()), t.stride(0), t.stride(1)};
}

// Destination of results: bf16 or f32, with an optional f32 carry that is added or merged.
struct Output {
  HeadsOf<__nv_bfloat16> half;  // destination of bf16 results, else null
  HeadsOf<float> whole;         // destination of f32 results, else null
  HeadsOf<const float> carry;   // null if there is none
};
Output output_of(const Tensor& t, const Tensor& carry);

// The rows and columns of work item `index`.
struct CtaCoord {
  SegmentPair piece;
  int head;        // head of the owner
  int block;       // block of rows, counted from the head segment's first row or, with lists, from position 0
  int begin, end;  // list entries [begin, end) of this work item
  int slot;        // slot for its partial sums (SplitSums), counted over all segment pairs; -1 if the list is not split
};

struct TileItem {
  SegmentPair piece;
  std::int32_t block;
};

struct TileSchedule {
  const TileItem* items;  // work items, most expensive first
  int count;              // number of items
  int heads;              // number of heads of the owner
  int section;  // heads per section; sections run one after another, because their streamed rows share the L2 cache
  int others;   // offset from `items` of a second list, in the order for all sections but the last; 0: one order
  // Only with block lists: the segment pairs, and the work items of the lists in their own order (lists.h).
  const SegmentPair* pieces;
  const ListItem* order;
  const std::int32_t* entries;  // null if there are no lists
  int listed, slots;            // listed: number of items in `order`; slots: slots per segment pair
  int group, halves;            // group: owner heads per KV head; halves: row blocks per list tile of 128 rows

  __device__ CtaCoord operator[](unsigned index) const {
    if (entries) {
      const int half = static_cast<int>(index % halves), in_group = static_cast<int>(index / halves % group);
      const unsigned rest = index / halves / group;
      const ListItem i = order[rest % listed];
      const int piece = static_cast<int>(rest / listed);  // 0 if each item names its segment pair
      return {pieces[piece + i.piece],
              i.kv_head * group + in_group,
              i.tile * halves + half,
              i.begin,
              i.end,
              i.part < 0 ? -1 : piece * slots + i.part};
    }
    const unsigned per_section = static_cast<unsigned>(section) * count, s = index / per_section;
    const unsigned rest = index - s * per_section, here = min(section, heads - static_cast<int>(s) * section);
    const bool last = static_cast<int>(s + 1) * section >= heads;
    const TileItem i = items[rest / here + (last ? 0 : others)];
    return {i.piece, static_cast<int>(s * section + rest % here), i.block, 0, 0, -1};
  }
};

// Returns the first row of a block, as a sample of its head segment. Lists count blocks from position 0, so with lists
// the row may lie before the head segment's first row.
template <Stationary owner>
__device__ inline int first_row(const TileSchedule& work, const HeadSegment& segment, const CtaCoord& at, int rows) {
  return (work.entries ? 0 : segment.first<owner>()) + at.block * rows;
}

struct SchedulePlan {
  TileSchedule work{};
  std::int64_t blocks = 0;           // work items
  unsigned int* counter = nullptr;   // counter of persistent kernels (TileScheduler); 0 between launches
  std::shared_ptr<const void> keep;  // owns the memory that `work` points to
  DeviceLists lists;                 // undefined tensors without lists
  std::int64_t pieces = 0;           // number of segment pairs that share the lists; 1 if each has its own lists
};
// Order of the row blocks of one head and segment pair. costliest: most expensive first; ascending: for kernels in
// which a block waits for the blocks before it.
enum class BlockOrder : std::uint8_t { costliest, ascending };
// Returns the work items of a pass. rows: rows per block; with lists, a divisor of 128. stream_bytes: bytes streamed
// per position of one head. The device copy of a plan is cached per stream, keyed by the contents of the arguments.
// Copies that a captured CUDA graph uses are never evicted.
SchedulePlan plan_schedule(const BranchPass&, const Pattern&, const std::vector<Span>& queries,
                           const std::vector<Span>& keys, const BlockSelection&, Stationary, std::int64_t heads,
                           std::int64_t kv_heads, int rows, std::int64_t stream_bytes, const ExecContext&,
                           BlockOrder = BlockOrder::costliest);

// Partial sums of dk and dv, f32 [segment pairs, slots, 128, D] each, for block lists that are split among thread
// blocks. Undefined if no list is split. add_up() adds the partial sums.
struct SplitParts {
  Tensor dk, dv;
  SplitParts(const SchedulePlan&, const AttentionBackward&, const ExecContext&);
  void add_up(const SchedulePlan&, const AttentionBackward&, const ExecContext&) const;
};

// Iterates in ascending order over blocks of `step` columns (64 or 32): the blocks of a list, or of an interval with a
// gap.
struct ColumnStream {
  const std::int32_t* entries;  // null for an interval
  int cursor, stop;  // cursor: next column or, with a list, next entry (half entry if step is 32); stop: list end
  int first, end, gap, gap_end, step;

  __device__ ColumnStream(const TileSchedule& work, const CtaCoord& at, const TileBounds& reach, int step)
      : entries(work.entries),
        cursor(work.entries ? at.begin << halved(step) : reach.first),
        stop(at.end << halved(step)),
        first(reach.first),
        end(reach.end),
        gap(reach.gap),
        gap_end(reach.gap_end),
        step(step) {}
  // Returns an upper bound of the number of remaining columns.
  __device__ int max_count() const { return entries ? (stop - cursor) * step : end - cursor; }
  // Moves to the next block. Returns false at the end. at: first column of the block. states: coverage of the block for
  // both halves of the tile, encoded as in a list entry (list_coverage).
  __device__ bool next(int& at, int& states) { return next(cursor, at, states); }
  // Like next(at, states), for several readers of one stream, each with its own cursor. A cursor starts as a copy of
  // the stream's cursor.
  __device__ bool next(int& cursor, int& at, int& states) const {
    if (entries) return next_listed(cursor, at, states);
    if (cursor >= gap && cursor < gap_end) cursor = gap_end;
    at = cursor;
    states = 0b1010;  // BlockCoverage::wholly for both halves
    cursor += step;
    return at < end;
  }

 private:
  __device__ static int halved(int step) { return step < kListColumns ? 1 : 0; }
  __device__ bool next_listed(int& cursor, int& at, int& states) const {
    while (cursor < stop) {
      const std::int32_t e = entries[cursor >> halved(step)];
      at = list_column(e) + (cursor & halved(step)) * step;
      states = e & 15;
      ++cursor;
      if (at + step > first && at < end) return true;
    }
    return false;
  }
};

// Merge of two softmax results over different keys: log-sum-exp of both, and the weight of each result.
struct Merged {
  float lse, own, before;
};
// own: log-sum-exp of this result; before: of the earlier result, -inf if there is none.
__device__ inline Merged merge(float own, float before) {
  if (before == -INFINITY) return {own, 1.0f, 0.0f};
  const float lse = fmaxf(own, before) + log1pf(expf(-fabsf(own - before)));
  return {lse, expf(own - lse), expf(before - lse)};
}

// Fill the rows that are in no span. With a carry, they get the carry, and lse is unchanged. Without a carry, they get
// out = 0, lse = -inf and gradients of 0.
void fill_outside(const Attention&, const ExecContext&);
void fill_outside(const AttentionBackward&, const ExecContext&);
void fill_no_keys(const Tensor& lse, const ExecContext&);  // fills lse with -inf

// Per-row inputs of the backward kernels, each [Hq,N]:
//   lse2   f32: log-sum-exp in base 2; +inf for rows without keys, so that their P is 0.
//   delta  f32: rowsum(dout * out). With dropout it is multiplied by 1 - rate, because the gradients of scores are
//          divided by 1 - rate in the end.
//   keys   dropout keys of the query rows (dropout.h); undefined without dropout.
struct RowStatistics {
  Tensor lse2, delta, keys;
};
RowStatistics row_statistics(const AttentionBackward&, const ExecContext&);

}  // namespace ring::cuda
