#pragma once
// The geometry that all kernels of the family share, on CPUs and GPUs. A pattern is worked off in passes; a pass cuts
// each pair of spans into segment pairs (one segment of one document); a head sees a segment pair as a head segment of
// samples, where every pattern is an interval with a hole. Block patterns add lists of blocks to it (blocks.h).

#include "core/host_device.h"
#include "kernels/attention/pattern.h"
#include "kernels/attention/stationary.h"

namespace ring {

struct BranchPass {
  std::int32_t segment = kNoSegment, rate = 1;
  std::int32_t finer = 0;              // pairs within one segment of this length belong to another pass; 0: none
  std::int32_t window = 0, shift = 0;  // window: in samples; 0: none
  std::int32_t pool = 0;               // keys are pools of so many tokens; 0: tokens
  bool causal = true, listed = false;  // listed: only the blocks of the pattern's lists
  RING_HOST_DEVICE std::int32_t offset(int kv_head) const { return (kv_head + shift) % rate; }
};

// In the order in which they are worked off: the last one has rate 1 and reaches every query.
std::vector<BranchPass> passes_of(const Pattern&);

// Positions count from the start of the segment. Position p of the queries is row q_row + p of their tensor.
struct SegmentPair {
  std::int32_t q_row, q_first, q_end;  // q_row may lie before the tensor; positions [q_first, q_end) exist
  std::int32_t k_row, k_first, k_end;
  std::int32_t sink_end;       // keys before it are seen beyond windows
  std::int32_t start = 0;      // where the segment starts in the packed row
  std::int32_t block_row = 0;  // of a selection: its document's first block
};

// Only segment pairs with rows; those without keys are there too (their queries see nothing), as are those without
// queries. block_rows: a selection's rows (selection.h).
std::vector<SegmentPair> segment_pairs_of(const BranchPass&, const Pattern&, const std::vector<Span>& queries,
                                          const std::vector<Span>& keys, std::vector<std::int32_t> block_rows = {});

// The columns c that a row sees: first <= c < end, and not hole <= c < hole_end.
struct Columns {
  std::int32_t first, end, hole, hole_end;
  RING_HOST_DEVICE bool has(std::int32_t c) const { return c >= first && c < end && (c < hole || c >= hole_end); }
};

// What several rows see: no row sees a column outside of [first, end) or inside of [gap, gap_end); every row sees the
// columns of [all_first, all_end) outside of [hole, hole_end).
struct TileBounds {
  std::int32_t first, end, gap, gap_end;
  std::int32_t all_first, all_end, hole, hole_end;
  RING_HOST_DEVICE bool none(std::int32_t c, std::int32_t width) const {
    const std::int32_t from = c < first ? first : c, to = c + width > end ? end : c + width;
    return from >= to || (from >= gap && to <= gap_end);
  }
  RING_HOST_DEVICE bool all(std::int32_t c, std::int32_t width) const {
    return c >= all_first && c + width <= all_end && (c + width <= hole || c >= hole_end || hole >= hole_end);
  }
};

// Sample j of a head segment is position offset + j * rate of its segment pair.
struct HeadSegment {
  std::int32_t q_row, k_row;  // rows of sample 0
  std::int32_t rate, offset;
  std::int32_t q_first, q_end, k_first, k_end, sink_end;  // samples
  std::int32_t window, finer;
  std::int32_t causal;    // tokens of a key, which none of them sees unless it is one; 0: not causal
  std::int32_t position;  // of sample 0 in the packed row

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

  // The keys that query j sees, or the queries that see key j.
  template <Stationary owner>
  RING_HOST_DEVICE Columns columns(std::int32_t j) const {
    Columns c = owner == Stationary::q ? Columns{k_first, k_end, 0, 0} : Columns{q_first, q_end, 0, 0};
    if (owner == Stationary::q) {
      if (causal > 0) c.end = least(c.end, causal == 1 ? j + 1 : j / causal);
      if (window > 0) {
        if (causal == 0) c.end = most(least(c.end, j + window), least(k_end, sink_end));
        c.hole = sink_end, c.hole_end = j - window + 1;
      }
    } else {
      if (causal > 0) c.first = most(c.first, causal == 1 ? j : (j + 1) * causal);
      if (window > 0 && j >= sink_end) {
        c.end = least(c.end, j + window);
        if (causal == 0) c.first = most(c.first, j - window + 1);
      }
    }
    if (finer > 0) {
      const std::int32_t start = (offset + j * rate) / finer * finer;
      c.hole = sample(start), c.hole_end = sample(start + finer);
    }
    return c;
  }

  // What the rows [row, row_end) see, at least one. Bounds rise with the row, except where sinks are the owners.
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
  RING_HOST_DEVICE static std::int32_t least(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
  RING_HOST_DEVICE static std::int32_t most(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
  // The first sample at or after position p (p + rate > offset or p >= 0).
  RING_HOST_DEVICE std::int32_t sample(std::int32_t p) const {
    return p <= offset ? 0 : (p - offset + rate - 1) / rate;
  }
};

}  // namespace ring
