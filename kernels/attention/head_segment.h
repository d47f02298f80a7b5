#pragma once
// Geometry that all attention kernels share, on CPUs and GPUs:
//   * A pattern runs in passes, one per branch.
//   * A pass divides each pair of spans (queries and keys of a document) into segment pairs, one for each segment.
//   * Each head samples a segment pair into a head segment. Counted in samples, a query sees an interval of keys with
//     at most one hole.
//   * Block patterns add lists of blocks (blocks.h).
// docs/glossary.md has a picture.

#include "core/host_device.h"
#include "kernels/attention/pattern.h"
#include "kernels/attention/stationary.h"

namespace ring {

struct BranchPass {
  std::int32_t segment = kNoSegment, rate = 1;
  std::int32_t finer = 0;              // if > 0, skips pairs within one segment of this length: a finer pass has them
  std::int32_t window = 0, shift = 0;  // window: in samples; 0 if there is no window
  std::int32_t pool = 0;               // tokens of each pool if keys are pools; 0 if keys are tokens
  bool causal = true, listed = false;  // listed: true for block patterns, whose lists say which blocks are kept
  RING_HOST_DEVICE std::int32_t offset(int kv_head) const { return (kv_head + shift) % rate; }
};

// Returns the passes in the order in which they run. The last one has rate 1 and covers every query.
std::vector<BranchPass> passes_of(const Pattern&);

// The queries and keys of one segment of one document. Positions count from the start of the segment: position p of the
// queries is row q_row + p of q, position p of the keys is row k_row + p of k.
struct SegmentPair {
  std::int32_t q_row, q_first, q_end;  // positions [q_first, q_end) have rows; q_row < 0 if position 0 is before row 0
  std::int32_t k_row, k_first, k_end;
  std::int32_t sink_end;       // keys before this position are sinks, seen beyond the window
  std::int32_t start = 0;      // position in the packed row at which the segment starts
  std::int32_t block_row = 0;  // selection row of the document's first block
};

// Returns the segment pairs that have queries, keys or both. Segment pairs without keys are included, because results
// of their queries must be written, too. block_rows: BlockSelection::rows of the call.
std::vector<SegmentPair> segment_pairs_of(const BranchPass&, const Pattern&, const std::vector<Span>& queries,
                                          const std::vector<Span>& keys, std::vector<std::int32_t> block_rows = {});

// The columns that a row sees: [first, end) without [hole, hole_end).
struct Columns {
  std::int32_t first, end, hole, hole_end;
  RING_HOST_DEVICE bool has(std::int32_t c) const { return c >= first && c < end && (c < hole || c >= hole_end); }
};

// Bounds of the columns that consecutive rows see. No row sees a column outside [first, end) or inside [gap, gap_end).
// Every row sees the columns of [all_first, all_end) that are outside [hole, hole_end). In the usual order:
//
//   first    all_first    hole   gap      gap_end   hole_end    all_end     end
//   |  some  |    all     | some |   none   |  some  |    all     |   some   |
struct TileBounds {
  std::int32_t first, end, gap, gap_end;
  std::int32_t all_first, all_end, hole, hole_end;
  // Returns true if no row sees any of the columns [c, c + width).
  RING_HOST_DEVICE bool none(std::int32_t c, std::int32_t width) const {
    const std::int32_t from = c < first ? first : c, to = c + width > end ? end : c + width;
    return from >= to || (from >= gap && to <= gap_end);
  }
  // Returns true if every row sees all of the columns [c, c + width).
  RING_HOST_DEVICE bool all(std::int32_t c, std::int32_t width) const {
    return c >= all_first && c + width <= all_end && (c + width <= hole || c >= hole_end || hole >= hole_end);
  }
};

// A segment pair as one head samples it: sample j is position offset + j * rate of the segment pair.
struct HeadSegment {
  std::int32_t q_row, k_row;  // rows of sample 0; may be negative
  std::int32_t rate, offset;
  std::int32_t q_first, q_end, k_first, k_end, sink_end;  // counted in samples
  std::int32_t window, finer;                             // window: in samples; finer: in positions, as in BranchPass
  // 0 if not causal. 1 if query j sees keys u <= j. p > 1 if keys are pools of p tokens, and query j sees the pools
  // that end before it: p (u + 1) <= j.
  std::int32_t causal;
  std::int32_t position;  // position of sample 0 in the packed row

  RING_HOST_DEVICE HeadSegment(const BranchPass& pass, const SegmentPair& p, std::int32_t offset)
      : q_row(p.q_row + offset),
        k_row(p.k_row + offset),
        rate(pass.rate),
        offset(offset),
        q_first(sample(p.q_first)),
        q_end(sample(p.q_end)),
        k_first(sample(p.k_first)),
        k_end(sample(p.k_end)),
        sink_end(sample(p.sink_end)),
        window(pass.window),
        finer(pass.finer),
        causal(!pass.causal    ? 0
               : pass.pool > 0 ? pass.pool
                               : 1),
        position(p.start + offset) {}

  template <Stationary owner>
  RING_HOST_DEVICE std::int32_t first() const {
    return owner == Stationary::q ? q_first : k_first;
  }
  template <Stationary owner>
  RING_HOST_DEVICE std::int32_t end() const {
    return owner == Stationary::q ? q_end : k_end;
  }

  // Returns the keys that query j sees (owner q), or the queries that see key j (owner kv).
  template <Stationary owner>
  RING_HOST_DEVICE Columns columns(std::int32_t j) const {
    Columns c = owner == Stationary::q ? Columns{k_first, k_end, 0, 0} : Columns{q_first, q_end, 0, 0};
    if (owner == Stationary::q) {
      if (causal > 0) c.end = min(c.end, causal == 1 ? j + 1 : j / causal);
      if (window > 0) {
        if (causal == 0) c.end = max(min(c.end, j + window), min(k_end, sink_end));
        c.hole = sink_end, c.hole_end = j - window + 1;
      }
    } else {
      if (causal > 0) c.first = max(c.first, causal == 1 ? j : (j + 1) * causal);
      if (window > 0 && j >= sink_end) {
        c.end = min(c.end, j + window);
        if (causal == 0) c.first = max(c.first, j - window + 1);
      }
    }
    if (finer > 0) {
      const std::int32_t start = (offset + j * rate) / finer * finer;
      c.hole = sample(start), c.hole_end = sample(start + finer);
    }
    return c;
  }

  // Returns the bounds of the columns that rows [row, row_end) see. Requires at least one row. The first and last
  // column of a row never decrease from one row to the next, so the first and last row determine the bounds. Exception:
  // rows that are sinks (owner kv, with a window).
  template <Stationary owner>
  RING_HOST_DEVICE TileBounds bounds(std::int32_t row, std::int32_t row_end) const {
    const Columns a = columns<owner>(row), b = columns<owner>(row_end - 1);
    TileBounds r{a.first, b.end, b.hole, a.hole_end, b.first, a.end, a.hole, b.hole_end};
    if (owner == Stationary::kv && window > 0 && row < sink_end) {
      r.end = a.end;
      r.all_end = row_end > sink_end ? columns<owner>(sink_end).end : a.end;
    }
    return r;
  }

 private:
  RING_HOST_DEVICE static std::int32_t min(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
  RING_HOST_DEVICE static std::int32_t max(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
  // Returns the first sample at or after position p; requires p + rate > offset or p >= 0.
  RING_HOST_DEVICE std::int32_t sample(std::int32_t p) const {
    return p <= offset ? 0 : (p - offset + rate - 1) / rate;
  }
};

}  // namespace ring
