#include "inspect/attention_cells.h"

#include <algorithm>

#include "core/check.h"
#include "inspect/attention_samples.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/seen_keys.h"

namespace ring {
namespace {

// Adds pairs to row i of the grid, one query and one range of keys at a time. For cells that a range covers completely,
// add() only marks the ends of the range; the destructor sums the marks.
class Line {
 public:
  Line(PairCells& cells, std::int64_t i) : cells_(cells), i_(i), covered_(static_cast<std::size_t>(cells.side()) + 1) {}
  ~Line() {
    double rows = 0;
    for (std::int64_t j = 0; j < cells_.side(); ++j) {
      rows += covered_[static_cast<std::size_t>(j)];
      cells_.kept(i_, j) += rows * static_cast<double>(cells_.size());
    }
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void add(std::int64_t first, std::int64_t end) {  // adds one query's pairs with keys [first, end)
    if (first >= end) return;
    const std::int64_t size = cells_.size(), a = first / size, b = end / size;
    if (a == b) {
      cells_.kept(i_, a) += static_cast<double>(end - first);
      return;
    }
    cells_.kept(i_, a) += static_cast<double>((a + 1) * size - first);
    covered_[static_cast<std::size_t>(a + 1)] += 1;
    covered_[static_cast<std::size_t>(b)] -= 1;
    if (end > b * size) cells_.kept(i_, b) += static_cast<double>(end - b * size);
  }

 private:
  PairCells& cells_;
  std::int64_t i_;
  std::vector<double> covered_;
};

// Adds the pairs of any pattern without block rules, query by query.
void add_rows(PairCells& cells, const Pattern& pattern, std::int32_t kv_head) {
  const SeenKeys seen(pattern);
  std::vector<KeyRun> runs;
  for (std::int64_t i = 0; i < cells.side(); ++i) {
    Line line(cells, i);
    for (std::int64_t t = i * cells.size(); t < std::min((i + 1) * cells.size(), cells.length()); ++t) {
      runs.clear();
      seen.add(kv_head, static_cast<std::int32_t>(t), static_cast<std::int32_t>(cells.length()), runs);
      for_key_ranges(runs, [&](std::int32_t first, std::int32_t end, int) { line.add(first, end); });
    }
  }
}

// Samples of a head segment, counted by cell: cell first + k contains count[k] samples.
struct Met {
  std::int64_t first = 0;
  std::vector<double> count;
};
Met met_by(const PairCells& cells, std::int64_t first, std::int64_t step, std::int64_t count) {
  Met met{first / cells.size(), {}};
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t position = first + done * step, cell = position / cells.size();
    const std::int64_t here = std::min(count - done, ((cell + 1) * cells.size() - position - 1) / step + 1);
    met.count.resize(static_cast<std::size_t>(cell - met.first) + 1);
    met.count.back() = static_cast<double>(here);
    done += here;
  }
  return met;
}

// Adds the pairs that at least one branch keeps, by inclusion-exclusion over the subsets of branches.
void add_branches(PairCells& cells, const std::vector<Branch>& branches, std::int64_t place) {
  for_subsets(branches, [&](unsigned subset, int size) {
    const double sign = size % 2 ? 1 : -1;
    for_common_samples(branches, subset, place, cells.length(), [&](auto first, auto step, auto count) {
      const Met met = met_by(cells, first, step, count);
      for (std::size_t q = 0; q < met.count.size(); ++q) {
        const auto i = met.first + static_cast<std::int64_t>(q);
        const double rows = met.count[q];
        for (std::size_t k = 0; k < q; ++k)
          cells.kept(i, met.first + static_cast<std::int64_t>(k)) += sign * rows * met.count[k];
        cells.kept(i, i) += sign * rows * (rows + 1) / 2;
      }
    });
  });
}

// Adds a block pattern. A cell consists of whole blocks or a block of whole cells, since both sizes are powers of two.
void add_blocks(PairCells& cells, const BlockPattern& blocks, std::int32_t kv_head) {
  const std::int64_t block = blocks.block(), length = cells.length(), cell = cells.size();
  const std::int64_t per_block = std::max<std::int64_t>(1, block / cell),
                     per_cell = std::max<std::int64_t>(1, cell / block);
  const BlockRule rule = blocks.rule(kv_head);
  for (std::int64_t q = 0; q * block < length; ++q) {
    const auto rows = static_cast<double>(std::min(block, length - q * block));
    for (std::int64_t k = 0; k <= q; ++k) {
      if (!rule.keeps(kv_head, static_cast<std::int32_t>(q), static_cast<std::int32_t>(k))) continue;
      if (per_cell > 1 || per_block == 1) {
        cells.kept(q / per_cell, k / per_cell) += k < q ? rows * static_cast<double>(block) : rows * (rows + 1) / 2;
        continue;
      }
      for (std::int64_t i = q * per_block; i < std::min((q + 1) * per_block, cells.side()); ++i)
        for (std::int64_t j = k * per_block; j < std::min((k + 1) * per_block, i + 1); ++j)
          cells.kept(i, j) = cells.max_kept(i, j);
    }
  }
}

// Adds pools of `size` tokens. The pair of a query and a pool counts as one pair, spread over the cells of the pool's
// tokens. A cell's sum is limited to max_kept().
void add_pools(PairCells& cells, std::int32_t size) {
  PairCells tokens = cells;
  for (std::int64_t i = 0; i < cells.side(); ++i)
    for (std::int64_t j = 0; j <= i; ++j) tokens.kept(i, j) = 0;
  for (std::int64_t i = 0; i < cells.side(); ++i) {
    Line line(tokens, i);
    for (std::int64_t t = i * cells.size(); t < std::min((i + 1) * cells.size(), cells.length()); ++t)
      line.add(0, t / size * size);
  }
  for (std::int64_t i = 0; i < cells.side(); ++i)
    for (std::int64_t j = 0; j <= i; ++j)
      cells.kept(i, j) = std::min(cells.max_kept(i, j), cells.kept(i, j) + tokens.kept(i, j) / size);
}

}  // namespace

PairCells::PairCells(std::int64_t length, std::int64_t max_cells, CellWhole whole)
    : length_(length), size_(1), whole_(whole) {
  RING_CHECK(length >= 1 && max_cells >= 1, "a picture of ", length, " tokens in ", max_cells, " cells");
  while ((length + size_ - 1) / size_ > max_cells) size_ *= 2;
  side_ = (length + size_ - 1) / size_;
  kept_.resize(static_cast<std::size_t>(side_ * side_));
}

std::int64_t PairCells::tokens(std::int64_t i) const { return std::min(size_, length_ - i * size_); }

double PairCells::max_kept(std::int64_t i, std::int64_t j) const {
  const auto rows = static_cast<double>(tokens(i));
  if (whole_ == CellWhole::queries) return j <= i ? rows : 0;
  return j < i ? rows * static_cast<double>(tokens(j)) : j == i ? rows * (rows + 1) / 2 : 0;
}

double PairCells::kept_share(std::int64_t i, std::int64_t i_end, std::int64_t j) const {
  double pairs = 0, of = 0;
  for (; i < std::min(i_end, side_); ++i) pairs += kept(i, j), of += max_kept(i, j);
  return of > 0 ? pairs / of : -1;
}

PairCells PairCells::coarsened(std::int64_t max_cells) const {
  PairCells c(length_, std::min(max_cells, side_), whole_);
  const std::int64_t n = c.size_ / size_;
  for (std::int64_t i = 0; i < side_; ++i)
    for (std::int64_t j = 0; j <= i; ++j) c.kept(i / n, j / n) += kept(i, j);
  return c;
}

PairCells cells_of(const Pattern& pattern, std::int32_t kv_head, std::int64_t length, std::int64_t max_cells) {
  RING_CHECK(pattern.causal, "attention can be drawn only if it is causal");
  check(pattern, "attention");
  PairCells cells(length, max_cells);
  if (pattern.blocks) {
    pattern.blocks->check_covers(length, "attention");
    add_blocks(cells, *pattern.blocks, kv_head);
  } else if (pattern.is_interval() || pattern.has_windows()) {
    add_rows(cells, pattern, kv_head);
  } else {
    add_branches(cells, pattern.branches, kv_head + pattern.shift);
  }
  for (const std::int32_t size : pattern.pools) add_pools(cells, size);
  return cells;
}

}  // namespace ring
