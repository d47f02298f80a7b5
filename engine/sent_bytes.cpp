#include "engine/sent_bytes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "core/checked.h"
#include "engine/devices.h"
#include "engine/layouts.h"
#include "engine/scaled_step.h"
#include "model/patterns.h"

namespace ring {
namespace {

constexpr int kMaxRingRanks = 64;  // maximum size of the smaller ring to extrapolate from

void add_sent(SentBytes& sum, const FakeTransfer& t, double weight) {
  const bool gathers = t.operation == "all_gather" || t.operation == "broadcast";
  double& part = t.group == "tp"             ? sum.tensor
                 : t.group.starts_with("cp") ? sum.context
                 : gathers                   ? sum.gathers
                                             : sum.reductions;
  part += weight * sent_bytes(t);
  sum.between_nodes += weight * std::min(sent_bytes(t), sent_between_nodes(t));  // an exchange may receive more
}

// Returns the first rank of cp, one in the middle and the last one. A rank in the middle has neighbours on both sides,
// and the ranks at the ends have the fewest and the most pairs.
std::set<int> sampled_ranks(const ParallelPlan& p) { return {0, p.cp / 2 * p.tp, (p.cp - 1) * p.tp}; }

// Returns the amounts of the rank that sends the most.
SentBytes max_sent(const Config& c, WorldSize world, const ActivationPlan& plan, const ScaledStep& small) {
  const ParallelPlan large = plan_of(c, world);
  SentBytes max;
  for (const int rank : sampled_ranks(plan_of(small.config, small.world))) {
    SentBytes sent;
    for (const DryTransfer& t : dry_step(small.config, small.world, plan, rank).transfers)
      add_sent(sent, in_large_layout(t.transfer, large, world), 1);
    if (sent.all() >= max.all()) max = sent;
  }
  return max;
}

void accumulate(SentBytes& sum, const SentBytes& more, double weight) {
  sum.context += weight * more.context;
  sum.gathers += weight * more.gathers;
  sum.reductions += weight * more.reductions;
  sum.tensor += weight * more.tensor;
  sum.between_nodes += weight * more.between_nodes;
}

SentBytes extrapolate(const Config& c, WorldSize world, const ActivationPlan& plan, int ring_ranks) {
  SentBytes sum;
  for (const ScaledStep& small : scaled_steps(c, world, ring_ranks))
    accumulate(sum, max_sent(c, world, plan, small), small.weight);
  return sum;
}

PlanRequest with_ranks(PlanRequest q, std::int64_t cp, std::int64_t rank_tokens) {
  ParallelConfig& p = q.config.parallel;
  q.world.ranks = narrow<int>(p.dp * cp * p.tp);
  q.config.model.context = cp * rank_tokens;
  p.cp = cp;
  p.cp_ranks_per_node = ring_ranks_per_node(q, cp, p.tp);
  q.fixed = {p.dp, p.cp, p.tp, p.zero};
  return q;
}

// Returns true if the amounts of the pattern are linear in the number of ranks, from kMaxRingRanks on: for dense
// attention, and for a window that fits on both sides of a rank in the middle of kMaxRingRanks ranks.
bool is_linear(const Pattern& p, std::int64_t rank_tokens) {
  return p.is_dense() || (p.is_interval() && p.branches[0].window <= kMaxRingRanks / 2 * rank_tokens);
}

// Other attention sends the same amount in all rings that are larger than its reach. If it still sends more in a ring
// of 2 * kMaxRingRanks than in one of half the size, its reach is not known.
void fill_row(SentRow& row, const PlanRequest& q, std::int64_t rank_tokens, const ActivationPlan& plan) {
  constexpr double kSame = 1e-3;
  const auto extrapolated_to = [&](std::int64_t cp, int ring_ranks) {
    const PlanRequest at = with_ranks(q, cp, rank_tokens);
    return extrapolate(at.config, at.world, plan, ring_ranks);
  };
  const std::vector<Pattern> patterns = patterns_of(q.config.model);
  const bool dense = std::ranges::all_of(patterns, &Pattern::is_dense);
  row.sent = extrapolated_to(row.cp, dense ? kFewRingRanks : kMaxRingRanks);
  const bool linear = std::ranges::all_of(patterns, [&](const Pattern& p) { return is_linear(p, rank_tokens); });
  if (linear || row.cp <= 2 * kMaxRingRanks) return;
  const double in_ring = extrapolated_to(2 * kMaxRingRanks, kMaxRingRanks).context;
  row.upper_bound = row.sent.context > (1 + kSame) * in_ring;
}

// Caps these numbers of ranks at 2 * kFewRingRanks, and plans the largest that has a layout.
PlannedStep plan_few_ranks(const PlanRequest& q, std::vector<std::int64_t> cp, std::int64_t rank_tokens) {
  for (std::int64_t& n : cp) n = std::min<std::int64_t>(n, 2 * kFewRingRanks);
  std::ranges::sort(cp, std::greater{});
  std::string error;
  for (const std::int64_t n : cp) {
    const Layouts found = try_layouts(with_ranks(q, n, rank_tokens));
    for (const PlannedStep& step : found.fit)
      if (step.config.parallel.cp_schedule == q.config.parallel.cp_schedule) return step;
    if (!found.too_large.empty())
      fail(found.too_large.front().layout, " needs at least ", bytes_text(found.too_large.front().min_bytes),
           " per device, but there are ", bytes_text(q.budget), ". Give fewer tokens per rank (model.context), or ",
           "a larger parallel.dp, parallel.tp or parallel.zero");
    if (error.empty()) error = found.error;
  }
  fail(error);
}

}  // namespace

SentTable count_sent_bytes(const PlanRequest& request, const std::vector<std::int64_t>& cp) {
  if (request.config.parallel.pp > 1)
    fail("parallel.pp: ", request.config.parallel.pp, ": the table of bytes per rank for growing parallel.cp does not ",
         "support pipeline stages. Set parallel.pp: 1");
  PlanRequest q = request;
  ParallelConfig& p = q.config.parallel;
  p.dp = std::max<std::int64_t>(1, p.dp);
  SentTable table;
  table.rank_tokens = q.config.model.context / std::max<std::int64_t>(1, p.cp);
  table.step_tokens = q.config.train.batch_size / p.dp * table.rank_tokens;
  table.step = plan_few_ranks(q, cp, table.rank_tokens);
  const std::int64_t ranks_of_node = p.cp_ranks_per_node;
  q.config = table.step.config;
  q.config.parallel.cp_ranks_per_node = ranks_of_node;
  for (const std::int64_t n : cp) {
    SentRow& row = table.rows.emplace_back(SentRow{.cp = n, .context = n * table.rank_tokens});
    try {
      fill_row(row, q, table.rank_tokens, table.step.activations.plan);
    } catch (const Error& e) {
      row.error = e.what();
    }
  }
  return table;
}

}  // namespace ring
