// Measurements of train.diagnostics_interval: against the weights before and after a step, and equal in every layout.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <ostream>

#include "comm/gloo/gloo.h"
#include "parallel/imbalance.h"
#include "tests/cases/attention_oracle.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

Training run_watched(const std::vector<std::string>& layout, int ranks, int steps, int interval) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = {"model.heads=8",
                 "model.kv_heads=4",
                 "model.head_dim=8",
                 "model.tied_embeddings=true",
                 "train.batch_size=8",
                 "train.log_interval=50",
                 "optimizer.lr=0.01",
                 "schedule.warmup_steps=2",
                 "model.biases=all",
                 "model.dropout=0.1",
                 "train.diagnostics_interval=" + std::to_string(interval)};
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  return train_on_ranks(o);
}

// Returns the part of a parameter's name: its prefix up to a number or to the first dot ("embedding", "blocks.1",
// "final_norm").
std::string part_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  return name.substr(0, name.starts_with("blocks.") ? name.find('.', dot + 1) : dot);
}

// Returns the norm of each part's change over its norm before, ordered by name, which is the order of the model's
// parts.
std::map<std::string, double> ratios_between(const Training& before, const Training& after) {
  std::map<std::string, std::pair<double, double>> squares;
  for (const auto& [name, old] : before.tensors) {
    if (!name.starts_with("model.")) continue;
    auto& [change, size] = squares[part_of(name.substr(6))];
    const std::vector<float>& now = after.tensors.at(name);
    for (std::size_t i = 0; i < old.size(); ++i) {
      const double a = old[i], b = now[i];
      change += (b - a) * (b - a);
      size += a * a;
    }
  }
  std::map<std::string, double> ratios;
  for (const auto& [part, s] : squares) ratios[part] = std::sqrt(s.first / s.second);
  return ratios;
}

class DistWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
class DistWatch : public DistWatchTest, public testing::WithParamInterface<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    All, DistWatch,
    testing::Values(
        Layout{"one", 1, {}}, Layout{"dp2_zero0", 2, {"parallel.zero=0"}}, Layout{"dp2_zero1", 2, {"parallel.zero=1"}},
        Layout{"dp4_zero2", 4, {"parallel.zero=2"}}, Layout{"dp2_zero3", 2, {"parallel.zero=3"}},
        Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp2_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
        Layout{"cp2_zero1", 4, {"parallel.cp=2", "parallel.zero=1"}},
        Layout{"cp2_gather", 2, {"parallel.cp=2", "parallel.cp_schedule=gather"}},
        Layout{"cp2_all_to_all", 2, {"parallel.cp=2", "parallel.cp_schedule=all_to_all"}},
        Layout{"cp4_hybrid", 4, {"parallel.cp=4", "parallel.cp_schedule=hybrid", "parallel.cp_ranks_per_node=2"}},
        Layout{"tp2_cp2_zero0", 4, {"parallel.tp=2", "parallel.cp=2"}},
        Layout{"recomputed", 1, {"train.recompute=full"}}, Layout{"offloaded_states", 1, {"optimizer.offload=states"}}),
    [](const auto& info) { return info.param.name; });

void expect_ratios(const Layout& l) {
  const std::vector<std::string> layout = [&] {
    std::vector<std::string> all = l.overrides;
    all.push_back("train.micro_batch=1");
    return all;
  }();
  const Training before = run_watched(layout, l.ranks, 2, 0), after = run_watched(layout, l.ranks, 3, 0);
  const Training watched = run_watched(layout, l.ranks, 3, 3);
  ASSERT_EQ(before.errors + after.errors + watched.errors, "");
  EXPECT_TRUE(same_bits(after, watched)) << "watching shows";
  for (const std::size_t step : {0u, 1u}) EXPECT_TRUE(watched.watched.at(step).empty());
  const WatchReport& got = watched.watched.at(2);
  const std::map<std::string, double> want = ratios_between(before, after);
  const std::vector<std::string> parts = {"embedding", "blocks.0", "blocks.1", "final_norm"};
  ASSERT_EQ(got.update_ratios.size(), parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    EXPECT_NEAR(got.update_ratios[i], want.at(parts[i]), 1e-4 * want.at(parts[i])) << parts[i];
}

TEST_P(DistWatch, RatiosAreThoseOfTheWeightsBeforeAndAfter) { expect_ratios(GetParam()); }

TEST_F(DistWatchTest, RatiosHoldForOtherUpdates) {
  expect_ratios({"muon", 2, {"optimizer.kind=muon", "parallel.zero=1"}});
  expect_ratios({"frozen", 1, {"optimizer.groups=[{match: ['blocks.1.*'], frozen: true}]"}});
}

// All of a replica's sequences are in one micro-batch, so that entropies are measured over the same sequences.
TEST_P(DistWatch, EntropiesAreThoseOfOneProcess) {
  const Layout& l = GetParam();
  const auto watched = [](std::vector<std::string> layout, int ranks) {
    layout.push_back("train.micro_batch=0");
    return run_watched(layout, ranks, 2, 1);
  };
  static const Training one = watched({}, 1);
  const Training many = watched(l.overrides, l.ranks);
  ASSERT_EQ(one.errors + many.errors, "");
  for (const std::size_t step : {0u, 1u}) {
    const WatchReport &a = one.watched.at(step), &b = many.watched.at(step);
    ASSERT_EQ(a.entropies.size(), 2u);
    ASSERT_EQ(b.entropies.size(), 2u);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      // 32 tokens see 1 to 32 tokens each, and attention of a fresh model is almost uniform.
      EXPECT_GT(a.entropies[layer], 2);
      EXPECT_LT(a.entropies[layer], std::lgamma(33) / 32);
      EXPECT_LE(a.min_entropies[layer], a.entropies[layer]);
      EXPECT_NEAR(b.entropies[layer], a.entropies[layer], 1e-4);
      EXPECT_NEAR(b.min_entropies[layer], a.min_entropies[layer], 1e-4);
    }
  }
}

// Kept shares are means over all heads and sequences, whichever ranks hold them: heads with several rules, in one of
// two layers, whole samples and packed documents.
constexpr const char* kMixedRules =
    "rules: [{pattern: content, keep: 3, first: 1}, {pattern: content, keep: 2}, {local: 2}], heads: [0, 1, 2, 2]";

std::vector<std::string> with_blocks(std::vector<std::string> layout, const std::string& rules) {
  for (const std::string& o :
       {std::string("model.context=320"), std::string("train.batch_size=4"), std::string("train.micro_batch=0"),
        "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, " + rules + "}}]"})
    layout.push_back(o);
  return layout;
}

void expect_shares_of_one(const Layout& l, const std::vector<std::string>& documents, const std::string& rules) {
  std::vector<std::string> layout = l.overrides;
  layout.insert(layout.end(), documents.begin(), documents.end());
  static std::map<std::string, Training> of_one;
  Training& one = of_one[str(rules, documents.size())];
  if (one.watched.empty()) one = run_watched(with_blocks(documents, rules), 1, 2, 1);
  const Training many = run_watched(with_blocks(layout, rules), l.ranks, 2, 1),
                 unwatched = run_watched(with_blocks(layout, rules), l.ranks, 2, 0);
  ASSERT_EQ(one.errors + many.errors + unwatched.errors, "");
  EXPECT_TRUE(same_bits(unwatched, many)) << "watching shows";
  for (const std::size_t step : {0u, 1u}) {
    const std::vector<KeptByLayer>&a = one.watched.at(step).kept, &b = many.watched.at(step).kept;
    ASSERT_EQ(a.size(), 1u);
    ASSERT_EQ(b.size(), 1u);
    EXPECT_EQ(b[0].layer, 1);
    EXPECT_TRUE(a[0].density > 0.2 && a[0].density < 1) << a[0].density;
    EXPECT_TRUE(a[0].recall > 0.2 && a[0].recall < 1) << a[0].recall;
    EXPECT_NEAR(b[0].density, a[0].density, 1e-6);
    EXPECT_NEAR(b[0].recall, a[0].recall, 1e-4);
    EXPECT_NEAR(many.watched[step].entropies[1], one.watched[step].entropies[1], 1e-4);
  }
}

TEST_F(DistWatchTest, SharesAreThoseOfOneProcess) {
  for (const Layout& l : {Layout{"one", 1, {}}, Layout{"dp2_zero3", 2, {"parallel.zero=3"}},
                          Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"tp2_dp2", 4, {"parallel.tp=2"}}})
    for (const std::vector<std::string>& documents : {std::vector<std::string>{}, {"data.packing.documents=true"}}) {
      SCOPED_TRACE(l.name + (documents.empty() ? "" : ", documents"));
      expect_shares_of_one(l, documents, kMixedRules);
    }
}

// Rules, and the cp schedules that support them.
struct WatchedRules {
  std::string name, rules;
  std::vector<std::string> schedules;
};
void PrintTo(const WatchedRules& r, std::ostream* out) { *out << r.name; }

class DistWatchedContext : public DistWatchTest, public testing::WithParamInterface<WatchedRules> {};
INSTANTIATE_TEST_SUITE_P(
    Rules, DistWatchedContext,
    testing::Values(
        WatchedRules{"content", kMixedRules, {"ring", "gather", "all_to_all"}},
        WatchedRules{"positions",
                     "rules: [{pattern: random, density: 0.3, seed: 2}, {local: 2, first: 1}], heads: [0, 1, 0, 0]",
                     {"ring", "gather", "all_to_all", "auto"}},
        WatchedRules{"learned",
                     "rules: [{pattern: learned, keep: 3, first: 1}, {local: 2}], heads: [0, 1, 0, 0], index_heads: 2, "
                     "index_head_dim: 8",
                     {"all_to_all"}},
        WatchedRules{"importance",
                     "rules: [{pattern: importance, keep: 3, first: 1, interval: 1}, {local: 2}], heads: [0, 0, 1, 0]",
                     {"all_to_all"}},
        WatchedRules{"pools", "rules: [{pattern: content, keep: 2}], pools: [4, 64]", {"ring", "gather", "all_to_all"}},
        WatchedRules{"learned_pools",
                     "rules: [{pattern: content, keep: 2}], pools: [4, 64], pooling: learned, pool_gates: true",
                     {"ring", "gather"}}),
    [](const auto& info) { return info.param.name; });

// Includes pieces of documents that begin within blocks.
TEST_P(DistWatchedContext, SharesAreThoseOfOneProcess) {
  for (const std::string& schedule : GetParam().schedules)
    for (const Layout& l : {Layout{"cp2_contiguous", 2, {"parallel.cp=2", "parallel.cp_layout=contiguous"}},
                            Layout{"cp2_zigzag", 2, {"parallel.cp=2", "parallel.cp_layout=zigzag"}},
                            Layout{"cp4_packed", 4, {"parallel.cp=4", "parallel.cp_layout=zigzag"}},
                            Layout{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2"}}}) {
      SCOPED_TRACE(schedule + ", " + l.name);
      Layout with = l;
      with.overrides.push_back("parallel.cp_schedule=" + schedule);
      std::vector<std::string> documents;
      if (l.name == "cp4_packed") documents = {"data.packing.documents=true"};
      expect_shares_of_one(with, documents, GetParam().rules);
    }
}

struct PairsByRank {
  Layout layout;
  std::vector<double> pairs;
};

// One layer of four blocks of 64 tokens, with two rules for two KV heads each: the first rule keeps 1, 2, 3 and 3
// blocks, the second one 1, 2, 2 and 2.
void expect_imbalance(const PairsByRank& c, const std::string& pools = "[]") {
  SCOPED_TRACE(c.layout.name);
  std::vector<std::string> overrides = c.layout.overrides;
  for (const std::string& o :
       {std::string("model.context=256"), std::string("train.micro_batch=0"),
        "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, rules: [{pattern: content, "
        "keep: 3}, {local: 2}], heads: [0, 0, 1, 1], pools: " +
            pools + "}}]"})
    overrides.push_back(o);
  const Training t = run_watched(overrides, c.layout.ranks, 1, 1);
  ASSERT_EQ(t.errors, "");
  const std::vector<double>& got = t.watched.at(0).imbalances;
  ASSERT_EQ(got.size(), c.pairs.size() > 1 ? 2u : 0u);
  if (!got.empty()) {
    EXPECT_NEAR(got[1], largest_over_mean(c.pairs), 1e-6);
  }
}

// h: pairs of a block with itself; b: pairs with an earlier block. Sums by rank, for one head of each rule.
TEST_F(DistWatchTest, ImbalanceIsThatOfTheRanksPairs) {
  const double h = 64 * 65 / 2, b = 64 * 64;
  const std::vector<double> rows = {2 * h, 2 * h + 2 * b, 2 * h + 3 * b, 2 * h + 3 * b};
  const std::vector<double> heads = {4 * h + 5 * b, 4 * h + 3 * b};
  for (const PairsByRank& c :
       {PairsByRank{{"one", 1, {}}, {1}}, PairsByRank{{"dp2", 2, {}}, {1}},
        PairsByRank{{"tp2", 2, {"parallel.tp=2"}}, heads}, PairsByRank{{"tp2_dp2", 4, {"parallel.tp=2"}}, heads},
        PairsByRank{{"all_to_all", 2, {"parallel.cp=2", "parallel.cp_schedule=all_to_all"}}, heads},
        PairsByRank{{"contiguous", 2, {"parallel.cp=2", "parallel.cp_schedule=ring", "parallel.cp_layout=contiguous"}},
                    {rows[0] + rows[1], rows[2] + rows[3]}},
        PairsByRank{{"zigzag_dp2", 4, {"parallel.cp=2", "parallel.cp_schedule=gather", "parallel.cp_layout=zigzag"}},
                    {rows[0] + rows[3], rows[1] + rows[2]}},
        PairsByRank{{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2", "parallel.cp_schedule=ring"}},
                    {2 * h + b, 2 * h + 4 * b, 2 * h + b, 2 * h + 2 * b}}})
    expect_imbalance(c);
}

// A layer with dense attention and one with windows, over rows of three sequences with 64 tokens each.
TEST_F(DistWatchTest, ImbalanceOfEveryKindIsCountedTokenByToken) {
  const std::vector<Pattern> patterns = {dense(), window(16)};
  const std::vector<Span> documents = {{0, 64, 0, 0}, {64, 64, 64, 64}, {128, 64, 128, 128}};
  const auto keys_of = [](std::size_t layer, int token) {
    const int seen = token % 64 + 1;
    return layer == 0 ? seen : std::min(seen, 16);
  };
  const auto expect = [&](const Layout& l, const std::optional<ContextLayoutChoice>& rows) {
    SCOPED_TRACE(l.name);
    std::vector<std::string> overrides = {
        "model.context=192", "train.context=64", "train.micro_batch=0",
        "model.attention_layers=[{layers: '1', attention: {kind: window, window: 16}}]"};
    overrides.insert(overrides.end(), l.overrides.begin(), l.overrides.end());
    const Training t = run_watched(overrides, l.ranks, 1, 1);
    ASSERT_EQ(t.errors, "");
    ASSERT_EQ(t.watched.at(0).imbalances.size(), 2u);
    ContextShards shards;
    if (rows) shards = choose_layout(*rows, patterns, 4, 192, 2).shards(0, 1, documents);
    for (const std::size_t layer : {0u, 1u}) {
      std::vector<double> pairs(shards.rows_by_rank.size());
      for (std::size_t r = 0; r < pairs.size(); ++r)
        for (const LocalRows& h : shards.rows_by_rank[r])
          for (int i = 0; i < h.count; ++i) pairs[r] += keys_of(layer, h.global + i);
      EXPECT_NEAR(t.watched[0].imbalances[layer], pairs.empty() ? 1 : largest_over_mean(pairs), 1e-6)
          << "layer " << layer;
    }
  };
  const std::string cp = "parallel.cp=2", ring = "parallel.cp_schedule=ring", gather = "parallel.cp_schedule=gather";
  expect({"contiguous", 2, {cp, ring, "parallel.cp_layout=contiguous"}}, ContextLayoutChoice::contiguous);
  expect({"zigzag", 2, {cp, gather, "parallel.cp_layout=zigzag"}}, ContextLayoutChoice::zigzag);
  expect({"auto", 2, {cp, ring}}, ContextLayoutChoice::balanced);
  expect({"tp2_dp2", 4, {"parallel.tp=2"}}, {});
  expect({"tp2", 4, {cp, gather, "parallel.tp=2", "parallel.cp_layout=contiguous"}}, ContextLayoutChoice::contiguous);
  expect({"all_to_all", 2, {cp, "parallel.cp_schedule=all_to_all"}}, {});
}

// In every head, token t sees t / size pools of each size.
TEST_F(DistWatchTest, PoolsArePairsOfTheImbalance) {
  const double h = 64 * 65 / 2, b = 64 * 64;
  double first = 0, last = 0;  // of the first and the second half of a row
  for (int t = 0; t < 256; ++t) (t < 128 ? first : last) += t / 8 + t / 48;
  for (const PairsByRank& c :
       {PairsByRank{{"tp2", 2, {"parallel.tp=2"}}, {4 * h + 5 * b + first + last, 4 * h + 3 * b + first + last}},
        PairsByRank{{"all_to_all", 2, {"parallel.cp=2", "parallel.cp_schedule=all_to_all"}},
                    {4 * h + 5 * b + first + last, 4 * h + 3 * b + first + last}},
        PairsByRank{{"contiguous", 2, {"parallel.cp=2", "parallel.cp_schedule=ring", "parallel.cp_layout=contiguous"}},
                    {4 * h + 2 * b + 2 * first, 4 * h + 6 * b + 2 * last}},
        PairsByRank{
            {"tp2_cp2",
             4,
             {"parallel.tp=2", "parallel.cp=2", "parallel.cp_schedule=gather", "parallel.cp_layout=contiguous"}},
            {2 * h + b + first, 2 * h + 4 * b + last, 2 * h + b + first, 2 * h + 2 * b + last}}})
    expect_imbalance(c, "[8, 48]");
}

// Only tokens are counted. Before the first step both models have the same queries and keys in layer 1.
TEST_F(DistWatchTest, PoolsAreNotShares) {
  const auto kept = [](const std::string& pools) {
    const Training t = run_watched({"model.context=320",
                                    "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, "
                                    "block: 64, rules: [{pattern: content, keep: 2}], pools: " +
                                        pools + "}}]"},
                                   1, 1, 1);
    EXPECT_EQ(t.errors, "");
    return t.watched.at(0);
  };
  const WatchReport with = kept("[4, 64]"), without = kept("[]");
  ASSERT_EQ(with.kept.size(), 1u);
  EXPECT_EQ(with.kept[0].density, without.kept.at(0).density);
  EXPECT_NEAR(with.kept[0].recall, without.kept[0].recall, 1e-5);
  EXPECT_GT(with.entropies[1], without.entropies[1] + 0.1);
}

TEST_F(DistWatchTest, OtherKindsKeepNoBlocks) {
  const Training plain = run_watched({}, 1, 1, 1);
  ASSERT_EQ(plain.errors, "");
  EXPECT_TRUE(plain.watched.at(0).kept.empty());
}

}  // namespace
}  // namespace ring::test
