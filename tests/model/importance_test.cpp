// Blocks by importance: averaging, choosing and trying distances, and the resulting patterns.
#include "model/attention/importance/importance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checkpoint/state.h"
#include "core/fields.h"
#include "kernels/attention/blocks.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/patterns.h"

namespace ring {
namespace {

constexpr std::int64_t kHeads = 2, kBlocks = 12;

ModelConfig model(const std::string& rules, const std::string& heads = "[]") {
  ModelConfig c;
  load_config_text(
      c,
      str("{context: ", 64 * kBlocks, ", heads: ", kHeads, ", kv_heads: ", kHeads, ", width: 16, layers: 1, ",
          "vocab_size: 10, attention: {kind: block_sparse, block: 64, rules: [", rules, "], heads: ", heads, "}}"),
      "test");
  return c.resolved();
}

BlockImportance importance(const ModelConfig& c, std::int64_t layer = 0) {
  return {c.attention, pattern_of(c, 0), {c.kv_heads, c.context}, layer};
}

// Returns masses in which every distance was seen in one block, with the given mass.
MeasuredMass masses(const std::vector<double>& by_distance) {
  MeasuredMass m;
  for (int h = 0; h < kHeads; ++h) m.sums.insert(m.sums.end(), by_distance.begin(), by_distance.end());
  m.rows.assign(m.sums.size(), 1);
  return m;
}
MeasuredMass falling() {
  std::vector<double> by_distance;
  for (int d = 0; d < kBlocks; ++d) by_distance.push_back(0.5 / (d + 1));
  return masses(by_distance);
}

std::vector<std::int32_t> kept(const Pattern& p, std::int32_t head, std::int32_t row) {
  std::vector<std::int32_t> all;
  for (std::int32_t k = 0; k <= row; ++k)
    if (p.blocks->keeps(head, row, k)) all.push_back(k);
  return all;
}

using Blocks = std::vector<std::int32_t>;

// Takes a measurement before a step and chooses blocks. Returns whether the blocks changed.
bool measure_and_choose(BlockImportance& i, std::int64_t step, const MeasuredMass& m) {
  i.update_averages(step, m);
  return i.choose_blocks(step);
}

TEST(BlockImportance, KeepsTheNewestUntilSomethingIsMeasured) {
  const ModelConfig c = model("{pattern: importance, local: 1, first: 1, keep: 4}");
  const Pattern start = pattern_of(c, 0), own = importance(c).pattern();
  for (std::int32_t head = 0; head < kHeads; ++head)
    for (std::int32_t i = 0; i < kBlocks; ++i) EXPECT_EQ(kept(own, head, i), kept(start, head, i)) << i;
  EXPECT_EQ(kept(own, 0, 9), (Blocks{0, 7, 8, 9}));
}

TEST(BlockImportance, KeepsTheDistancesOfMostMassAtAConstantBudget) {
  const ModelConfig c = model("{pattern: importance, local: 2, first: 1, keep: 5, interval: 1, decay: 0}");
  BlockImportance i = importance(c);
  MeasuredMass m = falling();
  m.sums[7] = 0.4, m.sums[4] = 0.45;  // in head 0
  EXPECT_TRUE(measure_and_choose(i, 1, m));
  const Pattern p = i.pattern();
  EXPECT_EQ(kept(p, 0, 11), (Blocks{0, 4, 7, 10, 11}));
  EXPECT_EQ(kept(p, 0, 7), (Blocks{0, 3, 5, 6, 7})) << "block 0 is there already: the next best distance, 2";
  EXPECT_EQ(kept(p, 0, 4), (Blocks{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(p, 1, 11), (Blocks{0, 8, 9, 10, 11}));
  for (std::int32_t head = 0; head < kHeads; ++head)
    for (std::int32_t row = 0; row < kBlocks; ++row)
      EXPECT_EQ(std::ssize(kept(p, head, row)), std::min(row + 1, 5)) << row;
}

TEST(BlockImportance, AveragesMeasurements) {
  const ModelConfig c = model("{pattern: importance, local: 1, keep: 4, interval: 80, decay: 0.75}");
  BlockImportance i = importance(c);
  MeasuredMass m = falling();
  for (double& s : m.sums) s = 6;
  for (double& r : m.rows) r = 8;
  m.rows[3] = 0;  // not kept
  EXPECT_FALSE(i.measures_before(9));
  EXPECT_TRUE(i.measures_before(10)) << "eight times in an interval";
  EXPECT_FALSE(measure_and_choose(i, 10, m));
  for (double& s : m.sums) s = 2;
  EXPECT_FALSE(measure_and_choose(i, 20, m));
  const float* of = i.averages().data<float>();
  EXPECT_NEAR(of[2], 0.75 * 0.75 + 0.25 * 0.25, 1e-6);
  EXPECT_LT(of[3], 0) << "nothing is known of it";
  EXPECT_TRUE(measure_and_choose(i, 80, m));
}

// Distances that were never kept are only tried at random, and are kept if their mass is large enough.
TEST(BlockImportance, TriesDistancesAtRandom) {
  const ModelConfig c = model("{pattern: importance, local: 1, keep: 4, interval: 1, explore: 1, decay: 0.5}");
  BlockImportance i = importance(c), again = importance(c);
  std::set<std::int32_t> tried;
  Blocks last;
  for (std::int64_t step = 1; step <= 40; ++step) {
    const MeasuredMass m = [&] {
      MeasuredMass all = falling();
      const Pattern p = i.pattern();
      for (std::int32_t head = 0; head < kHeads; ++head)
        for (std::int32_t d = 0; d < kBlocks; ++d) {
          const auto at = static_cast<std::size_t>(head * kBlocks + d);
          all.rows[at] = p.blocks->keeps(head, kBlocks - 1, kBlocks - 1 - d);
          all.sums[at] = all.rows[at] * (d == 9 ? 0.9 : 0.1 / (d + 1));
        }
      return all;
    }();
    measure_and_choose(i, step, m), measure_and_choose(again, step, m);
    last = kept(i.pattern(), 0, kBlocks - 1);
    EXPECT_EQ(last, kept(again.pattern(), 0, kBlocks - 1)) << "the same numbers in every process";
    EXPECT_EQ(last.size(), 4u);
    for (const std::int32_t k : last) tried.insert(kBlocks - 1 - k);
  }
  EXPECT_EQ(std::ssize(tried), kBlocks) << "all distances";
  EXPECT_TRUE(std::ranges::count(last, kBlocks - 1 - 9)) << "the one that is worth most stays";
  EXPECT_TRUE(std::ranges::count(last, kBlocks - 2)) << "and the one behind it";
}

TEST(BlockImportance, RandomNumbersDependOnSeedAndLayer) {
  const auto choices = [](const std::string& seed, std::int64_t layer) {
    BlockImportance i = importance(
        model(str("{pattern: importance, local: 1, keep: 4, interval: 1, explore: 2, seed: ", seed, "}")), layer);
    std::vector<Blocks> all;
    for (std::int64_t step = 1; step <= 10; ++step) {
      measure_and_choose(i, step, falling());
      for (std::int32_t head = 0; head < kHeads; ++head) all.push_back(kept(i.pattern(), head, kBlocks - 1));
    }
    return all;
  };
  const std::vector<Blocks> one = choices("1", 0);
  EXPECT_EQ(one, choices("1", 0));
  EXPECT_NE(one, choices("2", 0));
  EXPECT_NE(one, choices("1", 1));
  int differ = 0;
  for (std::size_t n = 0; n < one.size(); n += 2) differ += one[n] != one[n + 1];
  EXPECT_GT(differ, 3) << "heads alike";
}

// Heads with other rules keep the blocks of these rules.
TEST(BlockImportance, DoesNotChangeOtherHeads) {
  const ModelConfig c =
      model("{pattern: importance, local: 1, keep: 3, interval: 1}, {pattern: random, density: 0.3}", "[0, 1]");
  const Pattern start = pattern_of(c, 0);
  BlockImportance i = importance(c);
  MeasuredMass m = falling();
  m.sums[8] = 0.9;
  EXPECT_TRUE(measure_and_choose(i, 1, m));
  const Pattern p = i.pattern();
  for (std::int32_t row = 0; row < kBlocks; ++row) EXPECT_EQ(kept(p, 1, row), kept(start, 1, row)) << row;
  EXPECT_EQ(kept(p, 0, 10), (Blocks{2, 9, 10}));
  EXPECT_EQ(kept(of_heads(p, {0, 1}), 0, 10), (Blocks{2, 9, 10})) << "as a slice";
}

using Names = std::set<std::string>;

// Returns the names of the importance tensors in checkpoints.
Names saved_of(const ModelConfig& c) {
  Decoder decoder(c);
  State state;
  for (TrainingState* s : decoder.training_states()) s->add_to(state);
  Names names;
  for (const auto& [name, tensor] : state.tensors()) names.insert(name);
  EXPECT_EQ(state.values().contains("importance.measured"), !names.empty());
  return names;
}

TEST(BlockImportance, IsUsedIfAHeadHasTheRule) {
  const char* rules = "{pattern: importance, keep: 3}, {local: 2}";
  EXPECT_TRUE(uses_importance(model(rules, "[1, 0]").attention, kHeads));
  EXPECT_FALSE(uses_importance(model(rules, "[1]").attention, kHeads));
  EXPECT_FALSE(uses_importance({}, kHeads));
  EXPECT_EQ(saved_of(model(rules)), (Names{"importance.blocks.0.averages", "importance.blocks.0.scores"}));
  EXPECT_EQ(saved_of(model("{local: 2}")), Names{});
}

}  // namespace
}  // namespace ring
