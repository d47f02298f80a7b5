#pragma once
// The tiles of scores that a head segment needs, and what each of their rows sees.

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/head_segment.h"

namespace ring::cpu {

// A segment pair as one KV head sees it.
struct View {
  HeadSegment segment;
  const BlockPattern* blocks;  // null: the head segment says it all
  std::int32_t kv_head;

  View(const BranchPass& pass, const Pattern& pattern, const SegmentPair& piece, std::int32_t kv_head)
      : segment(pass, piece, pass.offset(kv_head)),
        blocks(pass.listed ? pattern.blocks.get() : nullptr),
        kv_head(kv_head) {}
  template <Stationary owner>
  bool keeps(std::int32_t own, std::int32_t other) const {
    return owner == Stationary::q ? blocks->keeps(kv_head, own, other) : blocks->keeps(kv_head, other, own);
  }
};

// fn(first, end) for [first, end) as cut at multiples of `size`.
template <class Fn>
void for_blocks(std::int32_t first, std::int32_t end, std::int32_t size, const Fn& fn) {
  for (std::int32_t next; first < end; first = next) {
    const std::int32_t base = first / size * size;
    next = base + std::min(size, end - base);
    fn(first, next);
  }
}

// fn(first, end) for the runs of columns of which rows [row, row_end) may see some; the rows lie in one block.
template <Stationary owner, class Fn>
void for_runs(const View& v, std::int32_t row, std::int32_t row_end, const Fn& fn) {
  const TileBounds r = v.segment.bounds<owner>(row, row_end);
  const auto run = [&](std::int32_t first, std::int32_t end) {
    if (first < end) fn(first, end);
  };
  if (!v.blocks) {
    const std::int32_t gap = std::max(r.gap, r.first), gap_end = std::min(r.gap_end, r.end);
    if (gap >= gap_end) return run(r.first, r.end);
    run(r.first, gap);
    return run(gap_end, r.end);
  }
  const std::int32_t size = v.blocks->block(), own = row / size;
  std::int32_t first = r.first;
  for (std::int32_t b = r.first / size; b * size < r.end; ++b)
    if (!v.keeps<owner>(own, b)) {
      run(first, b * size);
      first = (b + 1) * size;
    }
  run(first, r.end);
}

constexpr std::int32_t kStrip = 16;  // rows or keys of a tile whose products leave out together what none of them sees

// fn(first, end) for the strips of [first, end).
template <class Fn>
void for_strips(std::int32_t first, std::int32_t end, const Fn& fn) {
  for (std::int32_t next; first < end; first = next) {
    next = first + std::min(kStrip, end - first);
    fn(first, next);
  }
}

// A run of a tile's columns, or of its rows.
struct Extent {
  std::int64_t first, count;
};

// All that `own` to `own_end` see of a tile's [other, other + width), counted from there; at a multiple of 8.
template <Stationary owner>
Extent seen_by(const HeadSegment& s, std::int32_t own, std::int32_t own_end, std::int32_t other, std::int64_t width) {
  const TileBounds r = s.bounds<owner>(own, own_end);
  const std::int64_t first = std::clamp<std::int64_t>(r.first - other, 0, width) / 8 * 8;
  return {first, std::clamp<std::int64_t>(r.end - other, first, width) - first};
}

// What one row sees of a tile: its columns [first, end) without [hole, hole_end).
struct Seen {
  std::int64_t first, end, hole, hole_end;

  explicit Seen(std::int64_t width) : first(0), end(width), hole(width), hole_end(width) {}
  Seen(const Columns& c, std::int64_t column, std::int64_t width)
      : first(std::clamp<std::int64_t>(c.first - column, 0, width)),
        end(std::clamp<std::int64_t>(c.end - column, first, width)),
        hole(std::clamp<std::int64_t>(c.hole - column, first, end)),
        hole_end(std::clamp<std::int64_t>(c.hole_end - column, hole, end)) {}

  // The whole vectors that hold all that it sees.
  std::int64_t begin() const { return first / kLanes * kLanes; }
  std::int64_t padded_end() const { return whole_vectors(end); }
  // In these vectors, what it does not see.
  void fill(float* row, float value) const {
    std::fill(row + begin(), row + first, value);
    std::fill(row + hole, row + hole_end, value);
    std::fill(row + end, row + padded_end(), value);
  }
  // Outside of these vectors.
  void clear_rest(float* row, std::int64_t width) const {
    std::fill(row, row + begin(), 0.0f);
    if (padded_end() < width) std::fill(row + padded_end(), row + width, 0.0f);
  }
};

}  // namespace ring::cpu
