// Blocks that the rules keep, against sets written down from their definitions; versions; and the lists that kernels
// walk, against every single pair of positions.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "core/check.h"
#include "core/fields.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"

namespace ring::test {
namespace {

using Bits = std::vector<std::uint32_t>;

// A drawing of `rows` rows in which block q sees block k if kept(q, k).
BlockRule drawing(std::int32_t rows, std::int32_t columns, const std::function<bool(int, int)>& kept, Bits& bits) {
  BlockRule r{.kind = BlockRuleKind::drawn};
  r.first_word = static_cast<std::int64_t>(bits.size());
  r.rows = rows;
  r.words = (columns + 31) / 32;
  bits.resize(bits.size() + static_cast<std::size_t>(rows * r.words));
  for (int q = 0; q < rows; ++q)
    for (int k = 0; k < columns; ++k)
      if (kept(q, k)) bits[static_cast<std::size_t>(r.first_word + q * r.words + k / 32)] |= 1u << (k % 32);
  return r;
}
bool some_pairs(int q, int k) { return (q * 7 + k * 3) % 5 == 0; }

// Returns one rule of each kind; the last one is drawn for 40 blocks.
std::vector<BlockRule> all_rules(Bits& bits) {
  bits.assign(3, ~0u);  // not part of any drawing
  return {{.kind = BlockRuleKind::local_global, .local = 2, .first = 1, .every = 5},
          {.kind = BlockRuleKind::strided, .local = 1, .every = 3},
          {.kind = BlockRuleKind::hierarchical, .local = 2},
          {.kind = BlockRuleKind::random, .threshold = random_threshold(0.3), .seed = 9},
          drawing(40, 40, some_pairs, bits)};
}

TEST(BlockPattern, EachBlockSeesItself) {
  Bits bits;
  const std::vector<BlockRule> rules = all_rules(bits);
  const BlockPattern p(64, rules, {0, 1, 2, 3, 4}, bits);
  for (std::int32_t head = 0; head < 5; ++head)
    for (const std::int32_t q : {0, 1, 39, 40, 1000, 1 << 20}) EXPECT_TRUE(p.keeps(head, q, q)) << head << ", " << q;
}

TEST(BlockPattern, LocalAndGlobalBlocksAreKept) {
  const BlockPattern p(128, {{.kind = BlockRuleKind::local_global, .local = 2, .first = 1, .every = 4}});
  const std::set<int> row9 = {0, 4, 8, 9, 10, 12};  // 10 and 12 only without causality
  for (int k = 0; k < 14; ++k) EXPECT_EQ(p.keeps(0, 9, k), row9.contains(k)) << k;
  const BlockPattern plain(128, {{.kind = BlockRuleKind::local_global, .local = 3}});
  for (int k = 0; k < 14; ++k) EXPECT_EQ(plain.keeps(0, 9, k), std::abs(9 - k) < 3) << k;
}

TEST(BlockPattern, StridedBlocksAreKept) {
  const BlockPattern p(128, {{.kind = BlockRuleKind::strided, .local = 2, .every = 4}});
  const std::set<int> row9 = {1, 5, 8, 9, 10, 13};
  for (int k = 0; k < 15; ++k) EXPECT_EQ(p.keeps(0, 9, k), row9.contains(k)) << k;
}

TEST(BlockPattern, HierarchicalLevelsAreKept) {
  for (const int local : {1, 2, 3, 8, 100}) {
    constexpr int kEnd = 5000;
    std::set<int> want;
    for (int level = 0, first = 0; first < kEnd; ++level) {
      const int end = first + (local << level), step = 1 << level;
      int kept = 0;
      for (int d = (first + step - 1) / step * step; d < end; d += step, ++kept) want.insert(d);
      EXPECT_NEAR(kept, local, 1) << "level " << level;
      first = end;
    }
    const BlockPattern p(64, {{.kind = BlockRuleKind::hierarchical, .local = local}});
    for (int d = 0; d < kEnd; ++d) {
      EXPECT_EQ(p.keeps(0, kEnd, kEnd - d), want.contains(d)) << local << ", distance " << d;
      EXPECT_EQ(p.keeps(0, kEnd, kEnd + d), want.contains(d)) << local << ", distance " << -d;
    }
  }
  const BlockPattern wide(64, {{.kind = BlockRuleKind::hierarchical, .local = INT32_MAX}});
  EXPECT_TRUE(wide.keeps(0, (1 << 25) - 1, 0));
}

// Expects the share within five standard deviations.
void expect_share(double got, double share, double draws, const char* what) {
  EXPECT_NEAR(got, share, 5 * std::sqrt(share * (1 - share) / draws)) << what;
}

TEST(BlockPattern, RandomBlocksHaveTheirDensity) {
  constexpr int kSide = 600;
  for (const double density : {0.02, 0.25, 0.9}) {
    const BlockRule rule{.kind = BlockRuleKind::random, .threshold = random_threshold(density), .seed = 3};
    BlockRule other = rule;
    other.seed = 4;
    const BlockPattern p(64, {rule}), q(64, {other});
    double kept = 0, mirrored = 0, next_head = 0, next_seed = 0, next_key = 0, draws = 0;
    for (int i = 1; i < kSide; ++i)
      for (int k = 0; k < i; ++k) {
        ++draws;
        if (!p.keeps(0, i, k)) continue;
        ++kept;
        mirrored += p.keeps(0, k, i);
        next_head += p.keeps(1, i, k);
        next_seed += q.keeps(0, i, k);
        next_key += p.keeps(0, i + 1, k);
      }
    expect_share(kept / draws, density, draws, "of all");
    expect_share(mirrored / kept, density, kept, "keys and queries exchanged");
    expect_share(next_head / kept, density, kept, "another head");
    expect_share(next_seed / kept, density, kept, "another seed");
    expect_share(next_key / kept, density, kept, "the next query");
  }
  EXPECT_EQ(random_threshold(0), 0u);
  EXPECT_EQ(random_threshold(1), ~0u);
  const BlockPattern local(64, {{.kind = BlockRuleKind::random, .local = 3}});
  for (int k = 0; k < 20; ++k) EXPECT_EQ(local.keeps(0, 19, k), k > 16) << k;
}

TEST(BlockPattern, DrawnBlocksAreKept) {
  Bits bits;
  const std::vector<BlockRule> rules = all_rules(bits);
  const BlockPattern made(64, {rules.back()}, {}, bits);
  const BlockPattern p = made;  // a copy keeps its bits alive
  for (int q = 0; q < 50; ++q)
    for (int k = 0; k < 70; ++k)
      EXPECT_EQ(p.keeps(0, q, k), q == k || (q < 40 && k < 40 && some_pairs(q, k))) << q << ", " << k;
  p.check_covers(40 * 64, "attention");
  try {
    p.check_covers(40 * 64 + 1, "attention");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "attention: a row of 2561 tokens has 41 blocks of 64, but the pattern's file ends after 40. Add lines "
                 "for the others, or shorten the context");
  }
}

TEST(BlockPattern, HeadsFollowTheirRules) {
  const BlockPattern p(64, {{.local = 1}, {.local = 3}}, {0, 1, 1});
  for (const std::int32_t head : {0, 3, 6}) EXPECT_FALSE(p.keeps(head, 5, 3)) << head;
  for (const std::int32_t head : {1, 2, 4, 5}) EXPECT_TRUE(p.keeps(head, 5, 3)) << head;
}

TEST(BlockPattern, VersionsDifferWithContents) {
  const auto version = [](const BlockRule& r, std::int32_t block = 128, std::vector<std::int32_t> heads = {}) {
    return BlockPattern(block, {r, {}}, std::move(heads)).version();
  };
  const BlockRule rule{.kind = BlockRuleKind::local_global, .local = 2, .first = 1, .every = 5};
  // Files contain the version, so each process and machine must compute it: FNV-1a of "128\\n0 2 1 5\\n0 1 0 0\\n".
  EXPECT_EQ(version(rule), 829618297363121911u);
  std::set<std::uint64_t> seen = {version(rule), version(rule, 64), version(rule, 128, {0, 1}),
                                  version(rule, 128, {1, 0})};
  const std::int32_t three = 3;
  for (const auto member : {&BlockRule::local, &BlockRule::first, &BlockRule::every}) {
    BlockRule other = rule;
    other.*member = three;
    seen.insert(version(other));
  }
  BlockRule random{.kind = BlockRuleKind::random, .threshold = 7};
  seen.insert(version(random));
  random.seed = 1;
  seen.insert(version(random));
  random.threshold = 8;
  seen.insert(version(random));
  random.every = 12;  // has no meaning for this kind
  EXPECT_TRUE(seen.contains(version(random)));
  BlockRule content{.kind = BlockRuleKind::content, .keep = 3};
  EXPECT_EQ(version(content), hash_text("128\n5 1 0 3\n0 1 0 0\n")) << "a mass of 1 is none";
  seen.insert(version(content));
  for (const float mass : {0.5f, 0.75f}) content.mass = mass, seen.insert(version(content));
  for (const int more : {0, 1}) {
    const auto kept = [&](int q, int k) { return q == 3 && k <= more; };
    Bits bits, moved = {1, 2, 3};  // the position of the drawing among the bits is irrelevant
    const BlockRule drawn = drawing(4, 4, kept, bits), behind = drawing(4, 4, kept, moved);
    const BlockPattern p(64, {drawn}, {}, bits);
    EXPECT_EQ(BlockPattern(64, {behind}, {}, moved).version(), p.version());
    seen.insert(p.version());
  }
  EXPECT_EQ(seen.size(), 15u);
}

TEST(BlockPattern, AChangeIsANewGeneration) {
  const BlockPattern p(64, {{.local = 1}, {.local = 3}}, {0, 1});
  EXPECT_EQ(p.generation(), 0u);
  const BlockPattern next = p.with_rules({{.local = 2}, {.local = 4}});
  EXPECT_EQ(next.generation(), 1u);
  EXPECT_NE(next.version(), p.version());
  EXPECT_FALSE(next.keeps(0, 5, 3));
  EXPECT_TRUE(next.keeps(1, 5, 2));
  const BlockPattern back = next.with_rules({{.local = 1}, {.local = 3}});
  EXPECT_EQ(back.generation(), 2u);
  EXPECT_EQ(back.version(), p.version());
}

// Kernels were chosen for the first pattern, even if the next one has different rules and heads.
TEST(BlockPattern, APatternMayFollowOneOfOtherHeads) {
  const BlockPattern p(64, {{.local = 1}}), other(64, {{.local = 2}, {.local = 3}}, {0, 1});
  const BlockPattern next = other.as_successor_of(p);
  EXPECT_EQ(next.generation(), 1u);
  EXPECT_EQ(next.version(), other.version());
  EXPECT_TRUE(next.keeps(1, 5, 3) && !next.keeps(0, 5, 3));
  EXPECT_EQ(p.first_version(), p.version());
  EXPECT_EQ(next.first_version(), p.version());
  EXPECT_EQ(next.with_rules({{.local = 4}, {.local = 4}}).first_version(), p.version());
  const auto pattern = [](const BlockPattern& blocks) {
    Pattern made;
    made.blocks = std::make_shared<BlockPattern>(blocks);
    return made;
  };
  EXPECT_EQ(pattern_key(pattern(next)), pattern_key(pattern(p)));
  EXPECT_NE(pattern_key(pattern(other)), pattern_key(pattern(p)));
}

// Ranks with some of the heads do not measure again, either.
TEST(BlockPattern, SomeHeadsOfAChangedPatternKeepTheirFirstVersion) {
  const BlockPattern p(64, {{.local = 1}, {.local = 3}}, {0, 1});
  const BlockPattern next = p.with_rules({{.local = 2}, {.local = 4}}),
                     last = next.with_rules({{.local = 5}, {.local = 6}});
  for (const std::int32_t head : {0, 1}) {
    const BlockPattern some = p.of_heads(head, 1);
    EXPECT_EQ(some.first_version(), some.version());
    for (const BlockPattern& changed : {next.of_heads(head, 1), last.of_heads(head, 1)}) {
      EXPECT_NE(changed.version(), some.version());
      EXPECT_EQ(changed.first_version(), some.version());
    }
  }
  EXPECT_NE(next.of_heads(0, 1).first_version(), next.of_heads(1, 1).first_version());
}

TEST(BlockPattern, InvalidPatternsAreRefused) {
  const Bits bits(8);
  EXPECT_THROW(BlockPattern(32, {{}}), Error);
  EXPECT_THROW(BlockPattern(64, {}), Error);
  EXPECT_THROW(BlockPattern(64, {{}}, {1}), Error);
  EXPECT_THROW(BlockPattern(64, {{.local = 0}}), Error);
  EXPECT_THROW(BlockPattern(64, {{.first = -1}}), Error);
  EXPECT_THROW(BlockPattern(64, {{.kind = BlockRuleKind::strided, .every = -1}}), Error);
  EXPECT_THROW(BlockPattern(64, {{.kind = BlockRuleKind::drawn, .rows = 3, .words = 3}}, {}, bits), Error);
  EXPECT_THROW(BlockPattern(64, {{.kind = BlockRuleKind::drawn}}, {}, bits), Error);
  EXPECT_NO_THROW(BlockPattern(64, {{.kind = BlockRuleKind::drawn, .rows = 4, .words = 2}}, {}, bits));
}

// --- lists ---

struct ListCase {
  std::int32_t block;
  std::int64_t length;
  bool causal;
  Stationary owner;
};
void PrintTo(const ListCase& c, std::ostream* out) {
  *out << c.length << " positions, blocks of " << c.block << (c.causal ? ", causal" : ", full")
       << (c.owner == Stationary::q ? ", of queries" : ", of keys");
}
std::vector<ListCase> list_cases() {
  std::vector<ListCase> cases;
  for (const std::int32_t block : {64, 128})
    for (const std::int64_t length : {1, 63, 64, 65, 128, 129, 321, 512, 1000})
      for (const bool causal : {true, false})
        for (const Stationary owner : {Stationary::q, Stationary::kv}) cases.push_back({block, length, causal, owner});
  return cases;
}

class BlockListsOf : public testing::TestWithParam<ListCase> {};
INSTANTIATE_TEST_SUITE_P(All, BlockListsOf, testing::ValuesIn(list_cases()));

// Returns the coverage of 64 rows and 64 columns from all their pairs. If the first row or column exists, all 64 do.
BlockCoverage state_of(const BlockPattern& p, const ListCase& c, std::int32_t head, int row, int column) {
  if (row >= c.length || column >= c.length) return BlockCoverage::none;
  int kept = 0;
  for (int i = row; i < row + 64; ++i)
    for (int j = column; j < column + 64; ++j) {
      const int query = c.owner == Stationary::q ? i : j, key = c.owner == Stationary::q ? j : i;
      kept += (!c.causal || key <= query) && p.keeps(head, query / c.block, key / c.block);
    }
  return kept == 0 ? BlockCoverage::none : kept == 64 * 64 ? BlockCoverage::wholly : BlockCoverage::partly;
}

TEST_P(BlockListsOf, EqualTheDefinition) {
  const ListCase c = GetParam();
  Bits bits;
  const std::vector<BlockRule> rules = all_rules(bits);
  const BlockPattern p(c.block, rules, {0, 1, 2, 3, 4}, bits);
  const BlockLists lists = lists_of(p, c.owner, 5, c.length, c.causal);
  ASSERT_EQ(lists.tiles, (c.length + 127) / 128);
  ASSERT_EQ(lists.begins.size(), static_cast<std::size_t>(5 * lists.tiles + 1));
  std::size_t at = 0;
  for (std::int32_t head = 0; head < 5; ++head)
    for (int tile = 0; tile < lists.tiles; ++tile) {
      ASSERT_EQ(lists.begins[static_cast<std::size_t>(head * lists.tiles + tile)], static_cast<std::int32_t>(at));
      for (int column = 0; column < c.length; column += 64) {
        const BlockCoverage first = state_of(p, c, head, tile * 128, column);
        const BlockCoverage second = state_of(p, c, head, tile * 128 + 64, column);
        if (first == BlockCoverage::none && second == BlockCoverage::none) continue;
        ASSERT_LT(at, lists.entries.size());
        EXPECT_EQ(list_column(lists.entries[at]), column) << "head " << head << ", tile " << tile;
        EXPECT_EQ(list_coverage(lists.entries[at], 0), first) << "head " << head << ", tile " << tile << ", " << column;
        EXPECT_EQ(list_coverage(lists.entries[at], 1), second)
            << "head " << head << ", tile " << tile << ", " << column;
        ++at;
      }
    }
  EXPECT_EQ(at, lists.entries.size());
  EXPECT_EQ(lists.begins.back(), static_cast<std::int32_t>(at));
}

}  // namespace
}  // namespace ring::test
