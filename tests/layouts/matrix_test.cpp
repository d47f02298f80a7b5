// Tests that cells combine all values, and that the comparison detects runs that differ.

#include "tests/layouts/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/check.h"
#include "tests/layouts/compare.h"

namespace ring::test {
namespace {

// Visits every combination of the lists and both flags.
template <class Visit>
void for_each_cell(const std::vector<Kind>& kinds, const std::vector<Layout>& layouts, const Visit& visit) {
  for (const Kind& kind : kinds)
    for (const Layout& layout : layouts)
      for (int flags = 0; flags < 4; ++flags) visit(Cell{kind, layout, (flags & 1) != 0, (flags & 2) != 0});
}

std::set<std::string> pairs(const Cell& c) {
  const std::string k = c.kind.name, l = c.layout.name, p = c.packed ? "packed" : "plain", g = c.graph ? "graph" : "no";
  return {k + "," + l, k + "," + p, k + "," + g, l + "," + p, l + "," + g, p + "," + g};
}

TEST(LayoutMatrix, LegalPairsOccur) {
  for (const int ranks : {2, 4}) {
    const std::vector<Kind> kinds = all_kinds();
    const std::vector<Layout> layouts = all_layouts(ranks);
    std::set<std::string> possible, chosen, names;
    for_each_cell(kinds, layouts, [&](const Cell& c) {
      if (legal(c)) possible.merge(pairs(c));
    });
    const std::vector<Cell> cells = pairwise_cells(kinds, layouts);
    for (const Cell& c : cells) {
      EXPECT_TRUE(legal(c)) << name_of(c);
      EXPECT_TRUE(names.insert(name_of(c)).second) << name_of(c) << " occurs twice";
      chosen.merge(pairs(c));
    }
    EXPECT_EQ(chosen, possible);
    EXPECT_LT(cells.size(), kinds.size() * layouts.size() + 20) << "more than pairs of kind and layout need";
  }
}

TEST(LayoutMatrix, NeighboursShareGroups) {
  const std::vector<Cell> cells = pairwise_cells(all_kinds(), all_layouts(4));
  std::set<Settings> axes;
  int changes = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    axes.insert(cells[i].layout.axes());
    changes += i == 0 || cells[i].layout.axes() != cells[i - 1].layout.axes();
  }
  EXPECT_EQ(changes, static_cast<int>(axes.size()));
}

// One KV head can be divided neither by tensor parallelism nor by an exchange of heads. Pools and measured importance
// need whole sequences.
TEST(LayoutMatrix, IndivisibleHeadsAndChunksOfPooledKeysAreRefused) {
  std::set<std::string> names, expected;
  for (const Cell& c : refused_cells(all_kinds(), all_layouts(4))) names.insert(name_of(c));
  for (const char* layout :
       {"cp_all_to_all", "tp", "tp_cp_ring", "tp_cp_all_to_all", "tp_zero3", "cp_chunks", "tp_cp_chunks", "cp_hybrid"})
    expected.insert(str("kind=one_kv_head layout=", layout));
  for (const char* kind : {"importance", "pools"})
    for (const char* layout : {"cp_chunks", "tp_cp_chunks"}) expected.insert(str("kind=", kind, " layout=", layout));
  for (const char* kind : {"content", "learned", "importance", "pools"})
    for (const char* layout : {"cp_hybrid", "pp_slices", "pp_zero1", "pp_zero2"})
      expected.insert(str("kind=", kind, " layout=", layout));
  EXPECT_EQ(names, expected);
}

class LayoutComparison : public testing::Test {
 protected:
  static Reply run() {
    Reply a;
    a.losses = {5.5, 5.25, 5};
    a.norms = {1, 2, 3};
    a.regions = {{"w from [0] of [4]", 7}};
    return a;
  }
  static std::string text(const Reply& rank) { return disagreement(run(), {run(), rank}, {1e-4, 1e-2}); }
  static std::string text_of_all(const Reply& rank) { return disagreement(run(), {rank, rank}, {1e-4, 1e-2}); }
};

TEST_F(LayoutComparison, NamesTheStepAndBothValues) {
  Reply a = run();
  EXPECT_EQ(text_of_all(a), "");
  a.losses[1] *= 1 + 0.9e-4;
  a.norms[2] *= 1 - 0.9e-2;
  EXPECT_EQ(text_of_all(a), "");
  a.losses[1] = 5.25 * (1 + 2e-4);
  EXPECT_EQ(text_of_all(a), "loss of step 2 is 5.25105, one rank has 5.25 (relative 2.0e-04, at most 1e-04)");
  a = run();
  a.norms[2] = 3.3;
  EXPECT_EQ(text_of_all(a), "gradient norm of step 3 is 3.3, one rank has 3 (relative 1.0e-01, at most 1e-02)");
  a.losses = {5.5, std::nan(""), 5};
  EXPECT_NE(text_of_all(a).find("loss of step 2 is nan"), std::string::npos) << text_of_all(a);
  a.losses = {5.5};
  EXPECT_EQ(text_of_all(a), "1 steps, one rank has 3");
}

TEST_F(LayoutComparison, RanksAgreeAmongThemselves) {
  Reply a = run();
  a.losses[2] = std::nextafter(5.0, 6.0);
  EXPECT_EQ(text(a), "ranks 0 and 1 report different losses or norms");
  a = run();
  a.regions["w from [4] of [4]"] = 8;
  EXPECT_EQ(text(a), "") << "a region of its own";
  a.regions["w from [0] of [4]"] = 8;
  EXPECT_EQ(text(a), "ranks 0 and 1 hold different bits of w from [0] of [4]");
  a.error = "no memory";
  EXPECT_EQ(text(a), "rank 1 failed: no memory");
}

TEST_F(LayoutComparison, MessagesKeepAllDigits) {
  Reply a = run();
  a.losses[0] = 1.0 / 3;
  a.refused = "no";
  a.replayed = true;
  const Reply b = reply_of(to_text(a));
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.regions, b.regions);
  EXPECT_EQ(b.refused, "no");
  EXPECT_TRUE(b.replayed);
}

}  // namespace
}  // namespace ring::test
