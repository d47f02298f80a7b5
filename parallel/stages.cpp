#include "parallel/stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/checked.h"
#include "model/flops.h"

namespace ring {

BlockCosts flops_of_blocks(const ModelConfig& m) { return {0, block_flops_per_token(m), head_flops_per_token(m)}; }

double cost_of(const BlockCosts& c, const BlockRange& part) {
  const auto blocks = c.blocks.begin();
  return std::accumulate(blocks + part.first, blocks + part.end,
                         (part.first == 0 ? c.embedding : 0) + (part.end == std::ssize(c.blocks) ? c.head : 0));
}
namespace {

constexpr std::int64_t kUnits = std::int64_t{1} << 30;  // the cost of all blocks; its square fits into 64 bits

// Returns prefix sums of the costs: element n is the cost of the first n blocks in integer units, so that equal
// divisions have exactly equal costs.
std::vector<std::int64_t> cumulative_units(const BlockCosts& costs) {
  const std::int64_t blocks = std::ssize(costs.blocks);
  const double all = cost_of(costs, {0, blocks});
  RING_CHECK(all > 0, "blocks without a cost cannot be divided evenly");
  const double unit = all / static_cast<double>(kUnits);
  std::vector<std::int64_t> sums = {0};
  for (std::int64_t i = 0; i < blocks; ++i)
    sums.push_back(sums.back() + std::llround(cost_of(costs, {i, i + 1}) / unit));
  return sums;
}

// How bad a division is: its largest cost, then the sum of squared costs, which is low if costs are similar.
using Badness = std::pair<std::int64_t, std::int64_t>;
constexpr Badness kImpossible = {2 * kUnits, 0};

// Divides the blocks so that the largest part costs as little as possible. Finds the best division of the first `end`
// blocks into `part` + 1 parts, for each `end`, from the best divisions into `part` parts.
std::vector<BlockRange> divide_by_parts(const std::vector<std::int64_t>& sums, int parts) {
  std::vector<Badness> best(sums.size(), kImpossible);
  best[0] = {0, 0};
  std::vector<std::vector<std::size_t>> begins;  // begins[part][end]: first block of the last part
  for (std::size_t part = 0; part < static_cast<std::size_t>(parts); ++part) {
    std::vector<Badness> next(sums.size(), kImpossible);
    std::vector<std::size_t>& begin = begins.emplace_back(sums.size());
    for (std::size_t end = part + 1; end < sums.size(); ++end)
      for (std::size_t first = end; first-- > part;) {
        const std::int64_t cost = sums[end] - sums[first];
        if (cost > next[end].first) break;
        const Badness all = {std::max(best[first].first, cost), best[first].second + cost * cost};
        if (all <= next[end]) next[end] = all, begin[end] = first;
      }
    best = std::move(next);
  }
  std::vector<BlockRange> all(static_cast<std::size_t>(parts));
  std::int64_t end = std::ssize(sums) - 1;
  for (std::size_t part = all.size(); part-- > 0; end = all[part].first)
    all[part] = {narrow<std::int64_t>(begins[part][static_cast<std::size_t>(end)]), end};
  return all;
}

// Improves a division of the blocks among stages with several parts each, by local search. A move shifts the boundaries
// at the start of consecutive parts by one block. If all blocks cost the same, this amounts to moving one block from
// any part to any other. The search ends when no move makes the division better.
class StageDivision {
 public:
  StageDivision(const std::vector<std::int64_t>& sums, int stages, std::vector<BlockRange> parts)
      : sums_(sums), stages_(static_cast<std::size_t>(stages)), parts_(std::move(parts)) {}

  std::vector<BlockRange> improve() {
    while (improve_once()) {
    }
    return std::move(parts_);
  }

 private:
  // Compares divisions by the badness of their stages, then by the sum of the squared costs of all parts.
  using StageBadness = std::pair<Badness, std::int64_t>;

  StageBadness badness() const {
    std::vector<std::int64_t> stages(stages_);
    std::int64_t squares = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::int64_t cost =
          sums_[static_cast<std::size_t>(parts_[i].end)] - sums_[static_cast<std::size_t>(parts_[i].first)];
      stages[i % stages_] += cost;
      squares += cost * cost;
    }
    return {
        {std::ranges::max(stages), std::inner_product(stages.begin(), stages.end(), stages.begin(), std::int64_t{})},
        squares};
  }
  // Shifts the start of each part in [from, to) by `step` blocks, and with it the end of the preceding part.
  void shift(std::size_t from, std::size_t to, std::int64_t step) {
    for (std::size_t i = from; i < to; ++i) parts_[i].first += step, parts_[i - 1].end += step;
  }
  bool improve_once() {
    const StageBadness now = badness();
    for (std::size_t from = 1; from < parts_.size(); ++from)
      for (std::size_t to = from + 1; to <= parts_.size(); ++to)
        for (const std::int64_t step : {-1, 1}) {
          shift(from, to, step);
          const bool valid = parts_[from - 1].end > parts_[from - 1].first && parts_[to - 1].end > parts_[to - 1].first;
          if (valid && badness() < now) return true;
          shift(from, to, -step);
        }
    return false;
  }

  const std::vector<std::int64_t>& sums_;
  const std::size_t stages_;
  std::vector<BlockRange> parts_;
};

}  // namespace

std::vector<BlockRange> divide_blocks(const BlockCosts& costs, int stages, int parts) {
  const std::int64_t blocks = std::ssize(costs.blocks), all = std::int64_t{stages} * parts;
  RING_CHECK(stages >= 1 && parts >= 1 && all <= blocks, "cannot divide ", blocks, " blocks among ", stages,
             " stages with ", parts, " parts each: each part needs a block");
  const std::vector<std::int64_t> sums = cumulative_units(costs);
  std::vector<BlockRange> division = divide_by_parts(sums, narrow<int>(all));
  return parts == 1 ? division : StageDivision(sums, stages, std::move(division)).improve();
}

std::vector<BlockRange> model_parts(const ModelConfig& m, const ParallelPlan& p) {
  if (p.config.pp_division.empty()) return divide_blocks(flops_of_blocks(m), p.pp, narrow<int>(p.config.pp_parts));
  std::vector<BlockRange> all;
  for (const std::int64_t blocks : p.config.pp_division) {
    const std::int64_t first = all.empty() ? 0 : all.back().end;
    all.push_back({first, first + blocks});
  }
  return all;
}

PipelineShape pipeline_shape(const ParallelPlan& p, std::int64_t micro_batches) {
  return {p.pp, narrow<int>(p.config.pp_parts), narrow<int>(micro_batches), narrow<int>(p.config.pp_slices)};
}

int micro_batches_of_keys(const ParallelPlan& p, int stage) {
  if (p.config.pp_slices == 1) return 1;
  const PipelineShape shape = pipeline_shape(p, p.micro_batches);
  const PipelineTable table = make_pipeline_table(shape, p.config.pp_order);
  return max_micro_batches_in_flight(shape, table[static_cast<std::size_t>(stage)]);
}

std::vector<BlockRange> parts_of_stage(const ModelConfig& m, const ParallelPlan& p, int stage) {
  const PipelineShape shape = pipeline_shape(p, p.micro_batches);
  const std::vector<BlockRange> all = model_parts(m, p);
  std::vector<BlockRange> own;
  for (int part = stage; part < shape.all_parts(); part += shape.stages)
    own.push_back(all[static_cast<std::size_t>(part)]);
  return own;
}

}  // namespace ring
