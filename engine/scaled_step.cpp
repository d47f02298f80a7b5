#include "engine/scaled_step.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "engine/devices.h"

namespace ring {
namespace {

constexpr int kMaxShardRanks = 1024;  // maximum ranks of ZeRO in a small layout

// A degree of a small layout and its weight.
struct Weighted {
  std::int64_t degree = 1;
  double weight = 1;
};

// Returns degrees `small` and 2 * `small`, which extrapolate an amount that is linear in the degree to `degree`, or the
// degree itself if it is not larger than these.
std::vector<Weighted> extrapolated(std::int64_t degree, std::int64_t small) {
  if (degree <= 2 * small) return {{degree, 1}};
  const double steps = static_cast<double>(degree - small) / static_cast<double>(small);
  return {{small, 1 - steps}, {2 * small, steps}};
}

// With all_to_all, cp is at most the number of KV heads. Learned positions are parameters with a row for each position
// of the context. Sequences in chunks (train.sequence_chunk) have a ring for each chunk, so the context does not give
// its length.
bool may_shrink_context(const ParallelPlan& p, const Config& c) {
  return !p.in_chunks && p.config.cp_schedule != ContextSchedule::all_to_all && c.model.positions != Positions::learned;
}

// Rounds the ranks of cp up to whole nodes, so that the ring's steps inside and between nodes have the same shares.
std::int64_t in_whole_nodes(int ring_ranks, const ParallelPlan& p, WorldSize world) {
  const std::int64_t placed = p.tp < world.per_node ? world.per_node / p.tp : 1;
  const std::int64_t node = p.config.cp_ranks_per_node > 0 ? p.config.cp_ranks_per_node : placed;
  return (ring_ranks + node - 1) / node * node;
}

Config small_config(const Config& c, const ParallelPlan& p, std::int64_t cp, std::int64_t dp, std::int64_t batches) {
  Config small = c;
  small.model.context = (c.model.context + p.cp - 1) / p.cp * cp;
  small.parallel.dp = dp;
  small.parallel.cp = cp;
  small.parallel.tp = p.tp;
  small.parallel.islands = 1;  // all islands have the same layout
  small.train.micro_batch = p.micro_batch;
  small.train.batch_size = dp * p.micro_batch * batches;
  small.train.batch_sizes.clear();
  return small;
}

}  // namespace

std::vector<ScaledStep> scaled_steps(const Config& c, WorldSize world, int ring_ranks) {
  if (world.nodes() == 1 || c.parallel.pp > 1) return {{c, world, 1}};
  const ParallelPlan p = plan_of(c, world);
  std::vector<Weighted> rings = {{p.cp, 1}};
  if (may_shrink_context(p, c)) rings = extrapolated(p.cp, in_whole_nodes(ring_ranks, p, world));
  const std::int64_t max_cp = rings.back().degree;
  const std::int64_t shards = std::int64_t{p.dp} * p.cp;
  // The smaller ring has twice as many replicas, so that both layouts shard their states over equally many ranks.
  const std::int64_t replicas =
      std::clamp<std::int64_t>((shards + max_cp / 2) / max_cp, 1, std::max<std::int64_t>(1, kMaxShardRanks / max_cp));
  std::vector<ScaledStep> all;
  for (const Weighted& cp : rings)
    for (const Weighted& batches : extrapolated(p.micro_batches, 1)) {
      const std::int64_t dp = replicas * max_cp / cp.degree;
      all.push_back({small_config(c, p, cp.degree, dp, batches.degree),
                     {narrow<int>(dp * cp.degree * p.tp), world.per_node, world.islands},
                     cp.weight * batches.weight});
    }
  return all;
}

FakeTransfer placement_of_group(int ranks, int stride, WorldSize world) {
  FakeTransfer t{.ranks = ranks};
  t.ranks_of_node = world.nodes() > 1 ? world.per_node : world.ranks;
  t.ranks_on_node = std::clamp(t.ranks_of_node / stride, 1, ranks);
  const std::int64_t nodes = (std::int64_t{ranks} * stride + t.ranks_of_node - 1) / t.ranks_of_node;
  t.nodes = narrow<int>(std::min<std::int64_t>(nodes, ranks));
  return t;
}

FakeTransfer in_large_layout(FakeTransfer t, const ParallelPlan& large, WorldSize world) {
  if (t.group != "dp" && t.group != "dp x cp") return t;
  FakeTransfer placed = t.group == "dp" ? placement_of_group(large.dp, large.cp * large.tp, world)
                                        : placement_of_group(large.dp * large.cp, large.tp, world);
  placed.group = std::move(t.group);
  placed.operation = t.operation;
  placed.bytes = t.bytes;
  placed.bytes_between_nodes = t.bytes_between_nodes;
  return placed;
}

}  // namespace ring
