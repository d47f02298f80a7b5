#pragma once
// How the CUDA attention kernels cut their work: each thread block owns a block of rows (queries, or keys and values)
// of one head of one segment pair and streams blocks of the other side's columns past it. Which columns, is the choice
// of a ColumnStream, made at run time; which pairs of a block count, that of the head segment's TileBounds and Columns.

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
  std::int64_t row, head;  // strides
  __device__ T* at(std::int64_t token, int h) const { return data + token * row + h * head; }
};
template <class T>
HeadsOf<T> heads_of(const Tensor& t) {
  if (!t.defined()) return {};
  return {reinterpret_cast<T*>(t.raw()), t.stride(0), t.stride(1)};
}

// Where a kernel's sums go: rounded to bf16 or as they are, with what is there already added or merged.
struct Output {
  HeadsOf<__nv_bfloat16> half;  // either this,
  HeadsOf<float> whole;         // or this
  HeadsOf<const float> carry;   // null: none
};
Output output_of(const Tensor& t, const Tensor& carry);

// What block `index` of the grid owns.
struct CtaCoord {
  SegmentPair piece;
  int head;        // of the owner
  int block;       // of its rows: from the head segment's first one, with lists from position 0
  int begin, end;  // its part of a list's entries
  int slot;        // of partial sums (see SplitSums), over all segment pairs; -1: the block has all of its columns
};

struct TileItem {
  SegmentPair piece;
  std::int32_t block;
};

struct TileSchedule {
  const TileItem* items;  // costliest first
  int count;              // of items
  int heads;              // of the owner
  int section;            // heads whose streamed rows share the L2 cache: done before the next ones start
  // With lists: segment pairs, and the lists' own order of heads and tiles.
  const SegmentPair* pieces;
  const ListItem* order;
  const std::int32_t* entries;  // null: no lists
  int listed, slots;            // items of the order; slots of a segment pair
  int group, halves;            // owners per KV head; blocks per tile

  __device__ CtaCoord operator[](unsigned index) const {
    if (entries) {
      const int half = static_cast<int>(index % halves), in_group = static_cast<int>(index / halves % group);
      const unsigned rest = index / halves / group;
      const ListItem i = order[rest % listed];
      const int piece = static_cast<int>(rest / listed);  // 0 where items name theirs
      return {pieces[piece + i.piece],
              i.kv_head * group + in_group,
              i.tile * halves + half,
              i.begin,
              i.end,
              i.part < 0 ? -1 : piece * slots + i.part};
    }
    const unsigned per_section = static_cast<unsigned>(section) * count, s = index / per_section;
    const unsigned rest = index - s * per_section, here = min(section, heads - static_cast<int>(s) * section);
    const TileItem i = items[rest / here];
    return {i.piece, static_cast<int>(s * section + rest % here), i.block, 0, 0, -1};
  }
};

// The first row of a place's block, as a sample of its head segment. With lists it may lie before the head segment's
// first one.
template <Stationary owner>
__device__ inline int first_row(const TileSchedule& work, const HeadSegment& segment, const CtaCoord& at, int rows) {
  return (work.entries ? 0 : segment.first<owner>()) + at.block * rows;
}

struct SchedulePlan {
  TileSchedule work{};
  std::int64_t blocks = 0;           // of the grid
  unsigned int* counter = nullptr;   // 0 between launches, for kernels that hand out blocks of work
  std::shared_ptr<const void> keep;  // what `work` points to
  DeviceLists lists;                 // with lists
  std::int64_t pieces = 0;           // with lists that several share
};
// The order of one head's blocks of a segment pair: the costliest first, or from the first row to the last, as kernels
// need it whose blocks wait for those before them.
enum class BlockOrder : std::uint8_t { costliest, ascending };
// rows: of a block; with lists a divisor of 128. stream_bytes: of one column's rows that a block of one head streams.
// The device's copy is kept with the stream and found again by its contents; a recorded step's copy is never given up.
SchedulePlan plan_schedule(const BranchPass&, const Pattern&, const std::vector<Span>& queries,
                           const std::vector<Span>& keys, const BlockSelection&, Stationary, std::int64_t heads,
                           std::int64_t kv_heads, int rows, std::int64_t stream_bytes, const ExecContext&,
                           BlockOrder = BlockOrder::costliest);

// Sums for dk and dv of lists that were cut, before they are added up: [segment pairs, slots, 128, D] each, or
// undefined.
struct SplitParts {
  Tensor dk, dv;
  SplitParts(const SchedulePlan&, const AttentionBackward&, const ExecContext&);
  void add_up(const SchedulePlan&, const AttentionBackward&, const ExecContext&) const;
};

// The index source: blocks of `step` columns (64, or 32), ascending, of a list or of an interval with a gap.
struct ColumnStream {
  const std::int32_t* entries;  // null: an interval
  int cursor, stop;             // the next column; with lists the next half or whole of an entry, and the list's end
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
  // Columns from here on, at most.
  __device__ int most() const { return entries ? (stop - cursor) * step : end - cursor; }
  // The next block starts at `at`; its states for both halves of the tile as in a list's entry (list_coverage).
  __device__ bool next(int& at, int& states) { return next(cursor, at, states); }
  // For many that share a stream: a cursor of their own, which starts as the stream's.
  __device__ bool next(int& cursor, int& at, int& states) const {
    if (entries) return next_listed(cursor, at, states);
    if (cursor >= gap && cursor < gap_end) cursor = gap_end;
    at = cursor;
    states = 0b1010;
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

// Two results over different keys: the log-sum-exp of both, and the weights of each.
struct Merged {
  float lse, own, before;
};
__device__ inline Merged merge(float own, float before) {
  if (before == -INFINITY) return {own, 1.0f, 0.0f};
  const float lse = fmaxf(own, before) + log1pf(expf(-fabsf(own - before)));
  return {lse, expf(own - lse), expf(before - lse)};
}

// Rows of no span: out = 0 and lse = -inf, gradients 0, or what is carried.
void fill_outside(const Attention&, const ExecContext&);
void fill_outside(const AttentionBackward&, const ExecContext&);
void fill_no_keys(const Tensor& lse, const ExecContext&);  // -inf everywhere

// What both backward kernels read beside the operands, each [Hq,N] f32: delta = rowsum(dout * out), and lse in powers
// of two with +inf for rows without keys, so that their weights come out as 0. With dropout, delta is multiplied by
// 1 - rate, since gradients of scores are divided by it in the end, and there are keys of dropout.
struct RowStatistics {
  Tensor lse2, delta, keys;
};
RowStatistics row_statistics(const AttentionBackward&, const ExecContext&);

}  // namespace ring::cuda
