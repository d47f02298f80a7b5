#include "core/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/check.h"

namespace ring {
namespace {

using Order = std::vector<std::size_t>;
using Weight = std::function<double(const BlockLife&)>;

// Result of pack(): the offset of each block, and the total size. Block sizes were rounded up before.
struct Packing {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

struct PlacedBlock {
  std::size_t begin, end;  // offsets in the slab
  BlockLife life;
};

bool meet(const BlockLife& a, const BlockLife& b) { return a.begin < b.end && b.begin < a.end; }

// Returns the offset of the smallest gap that holds a block. Only placed blocks that live at the same time are in its
// way. If no gap is large enough, returns the offset after all of them. Requires `placed` sorted by begin.
std::size_t best_fit(const std::vector<PlacedBlock>& placed, const BlockLife& life) {
  std::size_t at = MemoryPlan::kNowhere, smallest = MemoryPlan::kNowhere, top = 0;
  for (const PlacedBlock& p : placed) {
    if (!meet(p.life, life)) continue;
    if (p.begin > top && p.begin - top >= life.bytes && p.begin - top < smallest) {
      at = top;
      smallest = p.begin - top;
    }
    top = std::max(top, p.end);
  }
  return at == MemoryPlan::kNowhere ? top : at;
}

Packing pack(const std::vector<BlockLife>& blocks, const Order& order) {
  Packing out;
  out.offsets.resize(blocks.size());
  std::vector<PlacedBlock> placed;
  for (const std::size_t i : order) {
    const std::size_t at = best_fit(placed, blocks[i]);
    const PlacedBlock p{at, at + blocks[i].bytes, blocks[i]};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at,
                                   [](std::size_t v, const PlacedBlock& q) { return v < q.begin; }),
                  p);
    out.offsets[i] = at;
    out.bytes = std::max(out.bytes, p.end);
  }
  return out;
}

std::size_t live_peak(const std::vector<BlockLife>& blocks) {
  struct Change {
    std::uint32_t at;
    bool begins;
    std::size_t bytes;
  };
  std::vector<Change> changes;
  for (const BlockLife& b : blocks) {
    changes.push_back({b.begin, true, b.bytes});
    changes.push_back({b.end, false, b.bytes});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.at < b.at; });
  std::size_t live = 0, peak = 0;
  for (const Change& c : changes) {
    live = c.begins ? live + c.bytes : live - c.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

// Returns the blocks by descending weight; equal weights keep the order of allocation.
Order sorted_by(const std::vector<BlockLife>& blocks, const Weight& weight) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weight(blocks[a]) > weight(blocks[b]); });
  return order;
}

// Moves the block that reaches the top of the slab to the front, so that the next attempt places it first.
void raise_top(Order& order, const std::vector<BlockLife>& blocks, const Packing& packing) {
  const auto top = std::find_if(order.begin(), order.end(),
                                [&](std::size_t i) { return packing.offsets[i] + blocks[i].bytes == packing.bytes; });
  std::rotate(order.begin(), top, top + 1);
}

Packing best_packing(const std::vector<BlockLife>& blocks) {
  const double size = static_cast<double>(blocks.size());
  // Limits all attempts together to a fraction of a second.
  int attempts = std::clamp(static_cast<int>(1e8 / (size * size + 1)), 0, 60);
  const std::size_t min = live_peak(blocks);
  const auto bytes = [](const BlockLife& b) { return static_cast<double>(b.bytes); };
  const auto length = [](const BlockLife& b) { return static_cast<double>(b.end - b.begin); };
  Order best_order = sorted_by(blocks, bytes);
  Packing best = pack(blocks, best_order);
  const Weight others[] = {length, [&](const BlockLife& b) { return bytes(b) * length(b); }};
  for (const Weight& weight : others) {
    if (best.bytes == min || --attempts < 0) return best;
    Order order = sorted_by(blocks, weight);
    Packing p = pack(blocks, order);
    if (p.bytes >= best.bytes) continue;
    best = std::move(p);
    best_order = std::move(order);
  }
  Packing last = best;
  for (Order order = best_order; best.bytes > min && attempts > 0; --attempts) {
    raise_top(order, blocks, last);
    last = pack(blocks, order);
    if (last.bytes < best.bytes) best = last;
  }
  return best;
}

// Blocks between two moments at which no block is alive, such as a micro-batch. Segments are planned separately, and
// equal segments only once.
struct Segment {
  std::vector<BlockLife> blocks;   // times relative to the segment's start
  std::vector<std::size_t> which;  // index of each block in the step
};

std::vector<Segment> split(const std::vector<BlockLife>& blocks, std::size_t align) {
  std::vector<Segment> out;
  std::uint32_t start = 0, quiet_from = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    BlockLife b = blocks[i];
    if (b.escapes()) continue;
    RING_CHECK(b.begin < b.end, "block ", i, " has an empty lifetime: from ", b.begin, " to ", b.end);
    if (out.empty() || b.begin >= quiet_from) {
      out.emplace_back();
      start = b.begin;
    }
    quiet_from = std::max(quiet_from, b.end);
    b = {(b.bytes + align - 1) / align * align, b.begin - start, b.end - start};
    out.back().blocks.push_back(b);
    out.back().which.push_back(i);
  }
  return out;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<BlockLife>& blocks, std::size_t align) {
  MemoryPlan plan;
  plan.offsets.assign(blocks.size(), MemoryPlan::kNowhere);
  const std::vector<Segment> segments = split(blocks, align);
  std::vector<std::pair<const Segment*, Packing>> done;
  for (const Segment& s : segments) {
    auto same = std::find_if(done.begin(), done.end(), [&](const auto& d) { return d.first->blocks == s.blocks; });
    if (same == done.end()) {
      plan.live_peak = std::max(plan.live_peak, live_peak(s.blocks));
      same = done.insert(done.end(), {&s, best_packing(s.blocks)});
    }
    for (std::size_t i = 0; i < s.which.size(); ++i) plan.offsets[s.which[i]] = same->second.offsets[i];
    plan.bytes = std::max(plan.bytes, same->second.bytes);
  }
  return plan;
}

}  // namespace ring
