#pragma once
// Score tiles of a head segment, and the columns that their rows see.

#include <algorithm>
#include <cstring>

#include "kernels/attention/blocks.h"
#include "kernels/attention/cpu/common.h"
#include "kernels/attention/cpu/softmax.h"
#include "kernels/attention/head_segment.h"
#include "kernels/attention/selection.h"

namespace ring::cpu {

// A segment pair as one KV head sees it.
struct View {
  HeadSegment segment;
  const BlockPattern* blocks;  // null if there is no block pattern
  SelectedBlocks selected;     // replaces the pattern's rules if there is a selection
  std::int32_t kv_head, block_row;

  View(const BranchPass& pass, const Pattern& pattern, const SelectedBlocks& selected, const SegmentPair& piece,
       std::int32_t kv_head)
      : segment(pass, piece, pass.offset(kv_head)),
        blocks(pass.listed ? pattern.blocks.get() : nullptr),
        selected(selected),
        kv_head(kv_head),
        block_row(piece.block_row) {}
  template <Stationary owner>
  bool keeps(std::int32_t own, std::int32_t other) const {
    return owner == Stationary::q ? keeps(own, other) : keeps(other, own);
  }

 private:
  bool keeps(std::int32_t q, std::int32_t k) const {
    return selected.kept ? selected.keeps(block_row + q, kv_head, k) : blocks->keeps(kv_head, q, k);
  }
};

// Calls fn(first, end) for the parts of [first, end), split at multiples of `size`.
template <class Fn>
void for_blocks(std::int32_t first, std::int32_t end, std::int32_t size, const Fn& fn) {
  for (std::int32_t next; first < end; first = next) {
    const std::int32_t base = first / size * size;
    next = base + std::min(size, end - base);
    fn(first, next);
  }
}

// Calls fn(first, end) for each run of columns that rows [row, row_end) may see. Requires that the rows are in one
// block.
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

constexpr std::int32_t kStrip = 16;  // queries of a strip, whose scores are computed together, one column per query

// Calls fn(first, end) for each strip of [first, end).
template <class Fn>
void for_strips(std::int32_t first, std::int32_t end, const Fn& fn) {
  for (std::int32_t next; first < end; first = next) {
    next = first + std::min(kStrip, end - first);
    fn(first, next);
  }
}

// `count` consecutive keys of a tile, from key `first` of the tile.
struct Extent {
  std::int64_t first, count;
};

// Returns the smallest run of keys, counted from `key`, that contains all keys of [key, key + width) that queries
// [row, end) see.
inline Extent seen_by(const HeadSegment& s, std::int32_t row, std::int32_t end, std::int32_t key, std::int64_t width) {
  const TileBounds r = s.bounds<Stationary::q>(row, end);
  const std::int64_t first = std::clamp<std::int64_t>(r.first - key, 0, width);
  return {first, std::clamp<std::int64_t>(r.end - key, first, width) - first};
}

// Queries [row, end) of a head segment and a tile of keys that starts at `key`; `seen` has all keys that they see.
struct Strip {
  const HeadSegment& segment;
  std::int32_t row, end, key;
  Extent seen;
};

// Number of queries in a part of a strip. One value for each of them fills a vector register. For longer vectors, g++
// generates code that computes element by element, in memory.
#ifdef __AVX512F__
constexpr std::int32_t kPart = 16;
#else
constexpr std::int32_t kPart = 8;
#endif
static_assert(kStrip % kPart == 0);

// One value for each query in a part of a strip. A vector type, because g++ would keep an array in memory.
using Lanes = float __attribute__((vector_size(kPart * sizeof(float))));
using Positions = std::int32_t __attribute__((vector_size(kPart * sizeof(std::int32_t))));

inline void load(Lanes& to, const float* from) { std::memcpy(&to, from, sizeof to); }

// Replaces the scores of a strip's queries in [first, end) by exp(score - shift), and writes each query's sum.
inline void exp_strip(float* first, const float* end, const float* shift, float* sums) {
  for (float* s = first; s < end; s += kStrip)
#pragma GCC ivdep
    for (std::int32_t j = 0; j < kStrip; ++j) s[j] = exp_fast(s[j] - shift[j]);
  for (std::int32_t part = 0; part < kStrip; part += kPart) {
    Lanes total{}, x;
    for (const float* s = first + part; s < end; s += kStrip) {
      load(x, s);
      total += x;
    }
    std::memcpy(sums + part, &total, sizeof total);
  }
}

// Sets the scores of keys that a query of the strip does not see to -inf.
inline void hide_unseen(const Strip& t, float* scores) {
  const TileBounds bounds = t.segment.bounds<Stationary::q>(t.row, t.end);
  const Lanes hidden = Lanes{} + kMinusInf;
  for (std::int32_t part = 0; part < kStrip; part += kPart) {
    Positions first, end, hole, hole_end;
    for (std::int32_t j = 0; j < kPart; ++j) {
      const Columns c = t.segment.columns<Stationary::q>(std::min(t.row + part + j, t.end - 1));
      first[j] = c.first, end[j] = c.end, hole[j] = c.hole, hole_end[j] = c.hole_end;
    }
    for (std::int64_t k = t.seen.first; k < t.seen.first + t.seen.count; ++k) {
      const std::int32_t key = t.key + static_cast<std::int32_t>(k);
      if (bounds.all(key, 1)) continue;
      Lanes of_key;
      load(of_key, scores + k * kStrip + part);
      of_key = (first <= key) & (end > key) & ((hole > key) | (hole_end <= key)) ? of_key : hidden;
      std::memcpy(scores + k * kStrip + part, &of_key, sizeof of_key);
    }
  }
}

}  // namespace ring::cpu
