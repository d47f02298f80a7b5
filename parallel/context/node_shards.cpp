#include "parallel/context/node_shards.h"

#include <algorithm>

#include "core/check.h"

namespace ring {
namespace {

// Returns the rows that any of these ranks holds, ascending. Adjacent rows are merged.
std::vector<LocalRows> joined_rows(const ContextShards& s, int first_rank, int ranks) {
  std::vector<LocalRows> all;
  for (int r = first_rank; r < first_rank + ranks; ++r) {
    const std::vector<LocalRows>& rows = s.rows_by_rank[static_cast<std::size_t>(r)];
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(all, {}, &LocalRows::global);
  std::vector<LocalRows> joined;
  std::int32_t first = 0;
  for (const LocalRows& h : all) {
    const bool adjacent = !joined.empty() && joined.back().global + joined.back().count == h.global;
    if (adjacent)
      joined.back().count += h.count;
    else
      joined.push_back({first, h.global, h.count});
    first += h.count;
  }
  return joined;
}

// Returns a rank's rows, numbered within the rows of its node instead of the micro-batch. Each range of `rows` is
// within one range of `of_node`.
std::vector<LocalRows> numbered_in_node(const std::vector<LocalRows>& rows, const std::vector<LocalRows>& of_node) {
  std::vector<LocalRows> out;
  for (const LocalRows& h : rows) {
    const auto after = std::ranges::upper_bound(of_node, h.global, {}, &LocalRows::global);
    const LocalRows& run = *std::prev(after);
    out.push_back({h.first, run.first + h.global - run.global, h.count});
  }
  return out;
}

}  // namespace

NodeShards split_by_node(const ContextShards& s, int per_node) {
  RING_CHECK(per_node >= 1 && s.ranks() % per_node == 0, "context shards: nodes of ", per_node,
             " ranks do not divide the ", s.ranks(), " ranks");
  ContextShards between{.rank = s.rank / per_node, .documents = s.documents, .rows_by_rank = {}};
  for (int first = 0; first < s.ranks(); first += per_node)
    between.rows_by_rank.push_back(joined_rows(s, first, per_node));
  ContextShards in{.rank = s.rank % per_node, .documents = {}, .rows_by_rank = {}};
  for (int r = 0; r < per_node; ++r)
    in.rows_by_rank.push_back(numbered_in_node(s.rows_by_rank[static_cast<std::size_t>(between.rank * per_node + r)],
                                               between.rows_by_rank[static_cast<std::size_t>(between.rank)]));
  return {std::make_shared<const ContextShards>(std::move(in)),
          std::make_shared<const ContextShards>(std::move(between))};
}

}  // namespace ring
