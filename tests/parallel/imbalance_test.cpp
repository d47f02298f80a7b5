// The number of pairs of each rank, against pairs counted one by one.

#include "parallel/imbalance.h"

#include <gtest/gtest.h>

#include "kernels/attention/blocks.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {
namespace {

TEST(Imbalance, IsTheMaximumOverTheMean) {
  EXPECT_EQ(largest_over_mean({3, 1, 2, 2}), 1.5);
  EXPECT_EQ(largest_over_mean({5}), 1);
  EXPECT_EQ(largest_over_mean({0, 0}), 1);
}

std::vector<double> counted(const Pattern& p, std::int64_t kv_heads, std::int64_t slices, const ContextLayout& layout) {
  std::vector<double> pairs;
  for (std::int64_t s = 0; s < slices; ++s)
    for (int r = 0; r < layout.ranks(); ++r) {
      double sum = 0;
      for (std::int64_t h = s * kv_heads / slices; h < (s + 1) * kv_heads / slices; ++h)
        for (const ContextLayout::Chunk& c : layout.chunks(r))
          for (std::int64_t t = c.begin; t < c.end; ++t) {
            for (std::int64_t u = 0; u <= t; ++u)
              sum += multiplicity(p, static_cast<std::int32_t>(h), static_cast<std::int32_t>(t),
                                  static_cast<std::int32_t>(u), 0);
            for (const std::int32_t pool : p.pools)
              for (std::int64_t end = pool; end <= t; end += pool) ++sum;
          }
      pairs.push_back(sum);
    }
  return pairs;
}

TEST(Imbalance, PairsOfRanksAreCountedOneByOne) {
  const BlockRule near{.local = 2, .first = 1},
      random{.kind = BlockRuleKind::random, .threshold = random_threshold(0.4), .seed = 2};
  Pattern pooled = window(20);
  pooled.pools = {7, 300};
  const std::vector<Pattern> patterns = {Pattern{}, window(37, 3), dilated({{32, 1}, {128, 2}, {512, 4}}),
                                         block_sparse(64, {near, random}), pooled};
  for (std::size_t i = 0; i < patterns.size(); ++i)
    for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
      for (const std::int64_t align : {1, 64})
        for (const std::int64_t slices : {1, 2, 4}) {
          const ContextLayout layout(kind, 450, 3, align);
          EXPECT_EQ(pairs_by_rank(patterns[i], 4, slices, layout), counted(patterns[i], 4, slices, layout))
              << "pattern " << i << ", " << slices << " slices, chunks at multiples of " << align;
        }
}

// The first half of the rows has a quarter of the pairs of dense attention; zigzag is balanced.
TEST(Imbalance, IsOneForDenseAttentionWithZigzag) {
  const auto of = [](ContextLayoutKind kind) {
    return largest_over_mean(pairs_by_rank(Pattern{}, 2, 1, ContextLayout(kind, 4096, 2)));
  };
  EXPECT_NEAR(of(ContextLayoutKind::contiguous), 1.5, 1e-3);
  EXPECT_EQ(of(ContextLayoutKind::zigzag), 1);
}

// Blocks selected by content count by their number alone: query blocks keep 1, 2, 3, and from then on 4 blocks.
TEST(Imbalance, SelectedBlocksCountByTheirNumber) {
  const Pattern p = block_sparse(64, {{.kind = BlockRuleKind::content, .local = 1, .keep = 4}});
  const double half = 64 * 65 / 2, block = 64 * 64;
  const std::vector<double> first = {4 * half + 6 * block, 4 * half + 12 * block};
  EXPECT_EQ(pairs_by_rank(p, 1, 1, ContextLayout(ContextLayoutKind::contiguous, 512, 2)), first);
}

}  // namespace
}  // namespace ring::test
