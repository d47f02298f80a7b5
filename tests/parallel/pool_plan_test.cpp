// Ranks that compute the pools of sharded documents, against lists of the tokens of each pool.

#include "parallel/context/pools/pool_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "parallel/context/pools/shard_pools.h"
#include "tests/parallel/context_problem.h"
#include "tests/parallel/cuts.h"

namespace ring::test {
namespace {

// Returns the tokens of all pools, pool after pool and each in order, as rows of the micro-batch.
std::vector<std::vector<std::int32_t>> tokens_of_pools(const std::vector<Span>& documents, std::int32_t size) {
  std::vector<std::vector<std::int32_t>> pools;
  for (const Span& d : documents)
    for (std::int32_t begin = 0; begin + size < d.count; begin += size) {
      pools.emplace_back();
      for (std::int32_t t = 0; t < size; ++t) pools.back().push_back(d.first + begin + t);
    }
  return pools;
}

// Returns the row of the micro-batch for each row of a rank.
std::vector<std::int32_t> rows_of(const ContextShards& shards, int rank) {
  std::vector<std::int32_t> rows;
  for (const LocalRows& h : shards.rows_by_rank[static_cast<std::size_t>(rank)])
    for (std::int32_t i = 0; i < h.count; ++i) rows.push_back(h.global + i);
  return rows;
}

void move(const std::vector<RowMove>& moves, const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
  for (const RowMove& m : moves)
    for (std::int64_t i = 0; i < m.count; ++i)
      to.at(static_cast<std::size_t>(m.to + i)) = from.at(static_cast<std::size_t>(m.first + i));
}

const PoolPlan::Message& to_or_from(const std::vector<PoolPlan::Message>& messages, int peer) {
  return *std::ranges::find(messages, peer, &PoolPlan::Message::peer);
}

// Returns the tensor in which a rank collects the tokens of its pools that are not whole on the rank.
std::vector<std::int32_t> parts_of(const std::vector<PoolPlan>& plans, const ContextShards& shards, int rank) {
  const PoolPlan& plan = plans[static_cast<std::size_t>(rank)];
  std::vector<std::int32_t> parts(static_cast<std::size_t>(plan.part_rows), -1);
  move(plan.own, rows_of(shards, rank), parts);
  for (const PoolPlan::Message& m : plan.receives) {
    const PoolPlan::Message& sent = to_or_from(plans[static_cast<std::size_t>(m.peer)].sends, rank);
    EXPECT_EQ(sent.count, m.count);
    std::vector<std::int32_t> message(static_cast<std::size_t>(m.count), -1);
    move(sent.moves, rows_of(shards, m.peer), message);
    move(m.moves, message, parts);
  }
  return parts;
}

// Adds the tokens of each pool that a rank computes.
void add_made(const std::vector<PoolSegment>& rows, std::int32_t size, const std::vector<std::int32_t>& from,
              std::map<std::int32_t, std::vector<std::int32_t>>& made) {
  for (const PoolSegment& r : rows)
    for (std::int32_t i = 0; i < r.count; ++i)
      made[r.out + i / size].push_back(from.at(static_cast<std::size_t>(r.first + i)));
}

TEST(PoolPlan, TheRankWithTheFirstTokenComputesTheWholePool) {
  for (const SequenceCut& c : kCuts)
    for (const std::int32_t size : {2, 7, 64, 200})
      for (const int ranks : {1, 2, 4})
        for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous}) {
          SCOPED_TRACE(str(c.name, ", pools of ", size, ", ", ranks, " ranks"));
          const ContextLayout layout(kind, c.length, ranks, c.align);
          const std::vector<Span> documents = documents_of(c.length, 2, c.documents);
          const auto pools = tokens_of_pools(documents, size);
          const ContextShards shards = layout.shards(0, 2, documents);
          std::vector<PoolPlan> plans;
          for (int r = 0; r < ranks; ++r) plans.push_back(pool_plan(layout.shards(r, 2, documents), size));
          std::size_t all = 0;
          for (int r = 0; r < ranks; ++r) {
            const PoolPlan& plan = plans[static_cast<std::size_t>(r)];
            EXPECT_EQ(plan.pools.rows_by_rank, plans[0].pools.rows_by_rank);
            std::map<std::int32_t, std::vector<std::int32_t>> made;
            add_made(plan.whole, size, rows_of(shards, r), made);
            add_made(plan.parts, size, parts_of(plans, shards, r), made);
            const std::vector<std::int32_t> held = rows_of(plan.pools, r), rows = rows_of(shards, r);
            ASSERT_EQ(made.size(), held.size());
            all += made.size();
            for (const auto& [at, tokens] : made) {
              EXPECT_EQ(tokens, pools.at(static_cast<std::size_t>(held.at(static_cast<std::size_t>(at)))));
              EXPECT_TRUE(std::ranges::count(rows, tokens[0]) == 1);
            }
          }
          EXPECT_EQ(all, pools.size());
        }
}

// Only pools that are spread over several ranks need messages.
TEST(PoolPlan, WholePoolsStayWhereTheyAre) {
  const auto plan = [](std::int64_t align, std::int32_t size) {
    return pool_plan(ContextLayout(ContextLayoutKind::zigzag, 512, 2, align).shards(0, 2, documents_of(512, 2, {})),
                     size);
  };
  EXPECT_FALSE(plan(64, 64).any_travels);
  EXPECT_EQ(plan(64, 64).part_rows, 0);
  // Chunks have 128 tokens; rank 0 has the first and the last. In each row, rank 0 computes a pool with 10 tokens of
  // rank 1, and sends 30 tokens of its last chunk to rank 1, which holds the chunk before.
  const PoolPlan cut = plan(64, 69);
  EXPECT_TRUE(cut.any_travels);
  EXPECT_EQ(cut.part_rows, 2 * 69);
  EXPECT_EQ(to_or_from(cut.receives, 1).count, 2 * 10);
  EXPECT_EQ(to_or_from(cut.sends, 1).count, 2 * 30);
}

TEST(PoolPlan, PlansForSeveralSizesAreThoseForEach) {
  const ContextShards shards = ContextLayout(ContextLayoutKind::zigzag, 512, 2).shards(0, 1, documents_of(512, 1, {}));
  const PoolPlans both = pool_plans(shards, {16, 64});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].pools.rows_by_rank, pool_plan(shards, 16).pools.rows_by_rank);
  EXPECT_EQ(both[1].pools.rows_by_rank, pool_plan(shards, 64).pools.rows_by_rank);
}

}  // namespace
}  // namespace ring::test
