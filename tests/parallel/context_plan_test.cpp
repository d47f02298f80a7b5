// Rows that each rank holds, computes and sends, against every single pair of a query and a key.

#include "parallel/context/plan.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/attention/pairs.h"
#include "tests/parallel/context_problem.h"

namespace ring {
namespace {

using test::ContextCase;

constexpr int kPlanHeads = 3;

TEST(ContextLayout, EveryPositionHasOneHolderAndChunksAreEqual) {
  for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
    for (int ranks = 1; ranks <= 5; ++ranks)
      for (const std::int64_t length : {1, 2, 3, 7, 64, 100, 1000})
        for (const std::int64_t align : {1, 16, 64}) {
          const ContextLayout layout(kind, length, ranks, align);
          std::vector<int> holders(static_cast<std::size_t>(length));
          std::set<std::int64_t> sizes;
          for (int r = 0; r < ranks; ++r)
            for (const ContextLayout::Chunk& c : layout.chunks(r)) {
              EXPECT_EQ(c.begin % align, 0);
              EXPECT_LT(c.begin, c.end);
              sizes.insert(c.end - c.begin);
              for (std::int64_t t = c.begin; t < c.end; ++t) ++holders[static_cast<std::size_t>(t)];
            }
          EXPECT_EQ(std::set<int>(holders.begin(), holders.end()), std::set<int>{1});
          EXPECT_LE(*sizes.rbegin() - *sizes.begin(), align);
        }
}

TEST(ContextLayout, ZigzagGivesEachRankAnEarlyAndALateChunk) {
  const ContextLayout layout(ContextLayoutKind::zigzag, 80, 2, 4);
  EXPECT_EQ(layout.chunks(0), (std::vector<ContextLayout::Chunk>{{0, 20}, {60, 80}}));
  EXPECT_EQ(layout.chunks(1), (std::vector<ContextLayout::Chunk>{{20, 40}, {40, 60}}));
}

TEST(ContextLayout, ShardsListWhatEachRankHoldsOfEveryRow) {
  const ContextLayout layout(ContextLayoutKind::zigzag, 12, 3);
  const ContextShards s = layout.shards(1, 2, test::documents_of(12, 2, {}));
  EXPECT_EQ(s.rows_by_rank[0], (std::vector<LocalRows>{{0, 0, 2}, {2, 10, 2}, {4, 12, 2}, {6, 22, 2}}));
  EXPECT_EQ(s.tokens(2), 8);
  EXPECT_EQ(s.tokens(), 24);
}

TEST(ContextLayout, AlignsToTheSegmentsAndBlocksThatFit) {
  const std::vector<Pattern> dilated = {test::dilated({{64, 1}, {256, 4}, {4096, 16}})};
  EXPECT_EQ(context_align(dilated, 4096, 4), 256);
  EXPECT_EQ(context_align(dilated, 256, 4), 64);
  EXPECT_EQ(context_align(dilated, 100, 4), 1);
  EXPECT_EQ(context_align({test::dense(), test::window(50)}, 4096, 4), 1);
  EXPECT_EQ(context_align({test::dense()}, 1'000'000, 16), 128);
  EXPECT_THROW(ContextLayout(ContextLayoutKind::zigzag, 12, 0), Error);
}

// Returns the row of the micro-batch for each row of a rank.
std::vector<std::int32_t> global_rows(const ContextShards& s, int rank) {
  std::vector<std::int32_t> out;
  for (const LocalRows& h : s.rows_by_rank[static_cast<std::size_t>(rank)])
    for (std::int32_t i = 0; i < h.count; ++i) out.push_back(h.global + i);
  return out;
}

// Number of times that each KV head counts a query and a key, both given by rows of the micro-batch.
class Pairs {
 public:
  explicit Pairs(std::int64_t rows) : rows_(rows), times_(static_cast<std::size_t>(kPlanHeads * rows * rows)) {}
  void add(int h, std::int64_t q, std::int64_t k, int m) {
    times_[static_cast<std::size_t>((h * rows_ + q) * rows_ + k)] += static_cast<std::uint8_t>(m);
  }
  bool operator==(const Pairs&) const = default;

 private:
  std::int64_t rows_;
  std::vector<std::uint8_t> times_;
};

Pairs wanted_pairs(const ContextCase& c) {
  Pairs pairs(c.tokens());
  for (const Span& d : c.documents)
    for (std::int32_t t = 0; t < d.count; ++t)
      for (std::int32_t u = 0; u < d.count; ++u)
        for (int h = 0; h < kPlanHeads; ++h)
          pairs.add(h, d.first + t, d.first + u,
                    test::multiplicity(c.pattern, h, d.position + t, d.position + u, d.document));
  return pairs;
}

// Calls fn(head, row of queries, row of keys, times) as kernels count pairs.
template <class Fn>
void for_pairs(const Pattern& pattern, const std::vector<AttentionCall>& calls, const Fn& fn) {
  for (const AttentionCall& round : calls)
    for (std::size_t b = 0; b < round.queries.size(); ++b) {
      const Span &q = round.queries[b], &k = round.keys[b];
      for (std::int32_t t = 0; t < q.count; ++t)
        for (std::int32_t u = 0; u < k.count; ++u)
          for (int h = 0; h < kPlanHeads; ++h)
            if (const int m = test::multiplicity(pattern, h, q.position + t, k.position + u, q.document))
              fn(h, q.first + t, k.first + u, m);
    }
}

void expect_rows_once(const std::vector<AttentionCall>& calls, std::int64_t query_rows, std::int64_t key_rows) {
  for (const AttentionCall& round : calls)
    for (const auto& [spans, rows] : {std::pair{&round.queries, query_rows}, {&round.keys, key_rows}}) {
      std::int64_t next = 0;
      for (const Span& s : sorted_by_row(*spans)) {
        EXPECT_GE(s.first, next);
        next = s.first + s.count;
      }
      EXPECT_LE(next, rows);
    }
}

// Returns [head][row of the receiver]: the owner's row, or -1 if no row was sent.
std::vector<std::vector<std::int32_t>> arrived(const KeyRequest& need) {
  std::vector<std::vector<std::int32_t>> out(kPlanHeads,
                                             std::vector<std::int32_t>(static_cast<std::size_t>(need.rows), -1));
  for (const RowCopy& c : need.copies)
    for (std::int32_t i = 0; i < c.count; ++i)
      for (int h = 0; h < kPlanHeads; ++h) {
        if (c.head >= 0 && c.head != h) continue;
        std::int32_t& row = out[static_cast<std::size_t>(h)][static_cast<std::size_t>(c.at + i * c.stride)];
        EXPECT_EQ(row, -1) << "a row travels twice";
        row = c.row + i * c.stride;
      }
  return out;
}

void add_pairs(const ContextCase& c, const ContextShards& s, int i, int j, Pairs& pairs) {
  const KeyRequest need = needed_keys(s, i, j, c.pattern, kPlanHeads);
  expect_rows_once(need.calls, s.tokens(i), need.rows);
  EXPECT_TRUE(need.calls.empty() || may_need_keys(s, i, j, c.pattern));
  EXPECT_LE(need.rows, s.tokens(j));
  const auto rows = arrived(need);
  if (i != j) {
    EXPECT_LE(need.row_heads(kPlanHeads), need.rows * kPlanHeads);
    EXPECT_TRUE(!need.whole || need.row_heads(kPlanHeads) == need.rows * kPlanHeads);
  }
  const std::vector<std::int32_t> queries = global_rows(s, i), keys = global_rows(s, j);
  for_pairs(c.pattern, need.calls, [&](int h, std::int32_t q, std::int32_t k, int m) {
    if (i != j) {
      k = rows[static_cast<std::size_t>(h)][static_cast<std::size_t>(k)];
      ASSERT_GE(k, 0) << "a key of head " << h << " did not travel from " << j << " to " << i;
    }
    pairs.add(h, queries[static_cast<std::size_t>(q)], keys[static_cast<std::size_t>(k)], m);
  });
}

class ContextPlan : public testing::TestWithParam<ContextCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, ContextPlan, testing::ValuesIn(test::context_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ContextPlan, EveryPairIsComputedOnce) {
  const ContextCase& c = GetParam();
  const Pairs want = wanted_pairs(c);
  for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
    for (const int ranks : {1, 2, 3, 5}) {
      const std::int64_t align = context_align({c.pattern}, c.length, 2 * ranks);
      const ContextShards s = ContextLayout(kind, c.length, ranks, align).shards(0, c.rows, c.documents);
      Pairs got(c.tokens()), with_all(c.tokens());
      for (int i = 0; i < ranks; ++i) {
        for (int j = 0; j < ranks; ++j) add_pairs(c, s, i, j, got);
        const std::vector<AttentionCall> calls = calls_with_all_keys(s, i, c.pattern);
        expect_rows_once(calls, s.tokens(i), c.tokens());
        const std::vector<std::int32_t> queries = global_rows(s, i);
        for_pairs(c.pattern, calls, [&](int h, std::int32_t q, std::int32_t k, int m) {
          with_all.add(h, queries[static_cast<std::size_t>(q)], k, m);
        });
      }
      EXPECT_TRUE(got == want) << "layout " << static_cast<int>(kind) << ", " << ranks << " ranks";
      EXPECT_TRUE(with_all == want) << "layout " << static_cast<int>(kind) << ", " << ranks << " ranks, all keys";
    }
}

// Like the standard ring: the rank's own triangle, then half a square per step on every rank, in one call each.
TEST(ContextPlanBalance, ZigzagOfDenseAttentionIsOneEqualCallPerStep) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kChunk = 8, kLength = 2 * kRanks * kChunk;
  const ContextShards s =
      ContextLayout(ContextLayoutKind::zigzag, kLength, kRanks).shards(0, 3, test::documents_of(kLength, 3, {}));
  for (int i = 0; i < kRanks; ++i)
    for (int j = 0; j < kRanks; ++j) {
      const KeyRequest need = needed_keys(s, i, j, test::dense(), 1);
      ASSERT_EQ(need.calls.size(), 1u);
      ASSERT_EQ(need.calls[0].queries.size(), 3u) << "one span per row";
      const double pairs = kept_pairs(test::dense(), need.calls[0].queries, need.calls[0].keys, 1);
      EXPECT_EQ(pairs, 3.0 * (i == j ? kChunk * (2 * kChunk + 1) : 2 * kChunk * kChunk)) << i << " " << j;
      EXPECT_EQ(need.row_heads(1), i == j ? 0 : 3 * kChunk * (j < i ? 1 : 2));
    }
}

// Rows sent, counted by hand.
TEST(ContextPlanTraffic, LocalPatternsSendWhatTheyNeed) {
  constexpr int kRanks = 4, kKvHeads = 4;
  constexpr std::int64_t kLength = 4096, kShard = kLength / kRanks;
  const ContextShards s =
      ContextLayout(ContextLayoutKind::contiguous, kLength, kRanks).shards(0, 1, test::documents_of(kLength, 1, {}));
  const auto row_heads = [&](const Pattern& p, int i, int j) {
    return needed_keys(s, i, j, p, kKvHeads).row_heads(kKvHeads);
  };
  for (int i = 0; i < kRanks; ++i)
    for (int j = 0; j < kRanks; ++j) {
      if (i == j) continue;
      const bool before = j < i, next = j == i - 1;
      EXPECT_EQ(row_heads(test::dense(), i, j), before ? kShard * kKvHeads : 0);
      EXPECT_EQ(row_heads(test::window(101), i, j), next ? 100 * kKvHeads : 0);
      const std::int64_t sinks = before && j == 0 ? 4 : 0;
      EXPECT_EQ(row_heads(test::window(101, 4), i, j), (next ? 100 * kKvHeads : 0) + sinks * kKvHeads);
      // Segments within a shard need no messages; the branch over all tokens sends every 8th row of a head.
      EXPECT_EQ(row_heads(test::dilated({{256, 1}, {1024, 2}, {4096, 8}}), i, j), before ? kShard / 8 * kKvHeads : 0);
      EXPECT_EQ(row_heads(test::dilated({{256, 1}, {1024, 2}}), i, j), 0);
      // The three previous blocks and the first block.
      const BlockRule rule{.kind = BlockRuleKind::local_global, .local = 4, .first = 1};
      EXPECT_EQ(row_heads(test::block_sparse(64, {rule}), i, j),
                ((next ? 3 : 0) + (before && j == 0 ? 1 : 0)) * 64 * kKvHeads);
    }
}

}  // namespace
}  // namespace ring
