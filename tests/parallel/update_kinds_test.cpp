// Kinds of parameter updates in every layout: equal to one process, and bit-identical after a resume.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "comm/gloo/gloo.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

struct Way {
  std::string name;
  Overrides overrides;
};
void PrintTo(const Way& w, std::ostream* out) { *out << w.name; }

// In the second way, q is frozen while k and v in the same matrix are not; of blocks.1 only the norms are trained.
const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"rates",
       {"optimizer.groups=[{match: ['*norm*', head.weight], lr: 0.01, weight_decay: 0.3}, {match: ['*.mlp.*'], lr: "
        "1e-3}]"}},
      {"frozen",
       {"optimizer.groups=[{match: ['embedding.*', 'blocks.0.attention.wq.*', 'blocks.1.attention.*.weight', "
        "'blocks.1.mlp.*.weight'], frozen: true}]"}},
      {"muon", {"optimizer.kind=muon"}},
      {"muon_in_part",
       {"optimizer.groups=[{match: ['*.attention.*', '*.mlp.gate.*'], kind: muon, lr: 1e-2}, {match: "
        "['blocks.0.*.wo.weight', '*.wv.weight'], kind: adamw}]"}}};
  return all;
}

// All other settings that affect a step, at once. The average requires weights on the device.
const Way& everything() {
  static const Way way = {
      "everything",
      {"optimizer.kind=muon", "optimizer.groups=[{match: ['*norm*', head.weight], lr: 0.01, weight_decay: 0.3}]",
       "model.attention_dropout=0.1", "train.ema=0.9", "train.diagnostics_interval=2", "schedule.kind=linear",
       "schedule.final_weight_decay=0.1"}};
  return way;
}

const std::vector<Layout>& update_layouts() {
  static const std::vector<Layout> all = {
      {"dp", 2, {}},
      {"zero1", 2, {"parallel.zero=1"}},
      {"zero2", 2, {"parallel.zero=2"}},
      {"zero3", 4, {"parallel.zero=3"}},
      {"cp", 2, {"parallel.cp=2"}},
      {"tp", 2, {"parallel.tp=2"}},
      {"cp_zero2", 4, {"parallel.cp=2", "parallel.zero=2"}},
      {"tp_zero1", 4, {"parallel.tp=2", "parallel.zero=1"}},
      {"tp_zero3", 4, {"parallel.tp=2", "parallel.zero=3"}},
      {"offload", 1, {"optimizer.offload=states", "optimizer.offload_chunk_bytes=10000"}},
      {"offload_zero2", 2, {"optimizer.offload=all", "optimizer.offload_chunk_bytes=10000", "parallel.zero=2"}}};
  return all;
}

// eps: if a gradient is pure rounding error, AdamW's usual epsilon would turn it into a full step.
TrainingOptions options_of(const Way& way, const Overrides& layout, int ranks, int steps = 6) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = {"optimizer.eps=1e-4", "train.micro_batch=2", "model.dropout=0.1"};
  o.overrides.insert(o.overrides.end(), way.overrides.begin(), way.overrides.end());
  o.overrides.insert(o.overrides.end(), layout.begin(), layout.end());
  return o;
}

const Training& on_one(const Way& way) {
  static std::map<std::string, Training> known;
  if (!known.count(way.name)) known[way.name] = train_on_ranks(options_of(way, {}, 1));
  return known[way.name];
}

class DistUpdateKinds : public testing::TestWithParam<std::tuple<Way, Layout>> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(All, DistUpdateKinds,
                         testing::Combine(testing::ValuesIn(ways()), testing::ValuesIn(update_layouts())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

std::vector<Layout> weights_on_device() {
  std::vector<Layout> some;
  for (const Layout& l : update_layouts())
    if (l.name != "offload_zero2") some.push_back(l);
  return some;
}
INSTANTIATE_TEST_SUITE_P(AtOnce, DistUpdateKinds,
                         testing::Combine(testing::Values(everything()), testing::ValuesIn(weights_on_device())),
                         [](const auto& info) { return std::get<1>(info.param).name; });

// Names of states are compared as well.
TEST_P(DistUpdateKinds, EqualOneProcess) {
  const auto& [way, layout] = GetParam();
  const Training &one = on_one(way), many = train_on_ranks(options_of(way, layout.overrides, layout.ranks));
  ASSERT_EQ(one.errors, "");
  ASSERT_EQ(many.errors, "");
  EXPECT_LT(one.losses.back(), one.losses.front());
  EXPECT_LT(largest_loss_difference(one, many), 1e-5);
  EXPECT_LT(largest_difference(one, many), 1e-4);
  EXPECT_LT(largest_difference(one, many, "optimizer."), 1e-3);
  EXPECT_LT(largest_difference(one, many, "ema."), 1e-4);
  for (std::size_t i = 0; i < one.norms.size(); ++i) EXPECT_NEAR(many.norms[i], one.norms[i], 1e-4 * one.norms[i]);
}

class DistUpdateKindsResume : public testing::TestWithParam<Way> {
 protected:
  ~DistUpdateKindsResume() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-update-kinds-" + std::to_string(getpid()))).string();
};
INSTANTIATE_TEST_SUITE_P(All, DistUpdateKindsResume, testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(AtOnce, DistUpdateKindsResume, testing::Values(everything()),
                         [](const auto& info) { return info.param.name; });

// Saved by two ranks that shard everything, and loaded by two ranks with another layout and by one.
TEST_P(DistUpdateKindsResume, ResumesBitForBitAndMovesBetweenLayouts) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Overrides shared = {"parallel.zero=3"};
  const Training whole = train_on_ranks(options_of(GetParam(), shared, 2, 6));
  TrainingOptions half = options_of(GetParam(), shared, 2, 3);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(whole.errors + first.errors, "");
  const auto resumed = [&](const Overrides& layout, int ranks, int steps) {
    TrainingOptions rest = options_of(GetParam(), layout, ranks, steps);
    rest.load = first.checkpoint;
    const Training t = train_on_ranks(rest);
    EXPECT_EQ(t.errors, "");
    return t;
  };
  const Training second = resumed(shared, 2, 3);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
  EXPECT_EQ(resumed({}, 1, 0).tensors, first.tensors);
  EXPECT_EQ(resumed({"parallel.tp=2", "optimizer.offload=states"}, 2, 0).tensors, first.tensors);
}

const Training& plain(const Overrides& more) {
  static std::map<std::string, Training> known;
  const std::string key = more.empty() ? "" : more[0];
  if (!known.count(key)) known[key] = train_on_ranks(options_of({}, more, 1));
  return known[key];
}

// The same settings, expressed differently, give the same bits.
TEST(UpdateGroups, ForAllParametersEqualTheGlobalSettings) {
  EXPECT_TRUE(same_bits(plain({"optimizer.lr=6e-3"}), plain({"optimizer.groups=[{match: ['*'], lr: 6e-3}]"})));
  EXPECT_TRUE(
      same_bits(plain({"optimizer.weight_decay=0"}), plain({"optimizer.groups=[{match: ['*'], weight_decay: 0}]"})));
  EXPECT_FALSE(same_bits(plain({}), plain({"optimizer.groups=[{match: ['*norm*'], lr: 6e-3}]"})));
  EXPECT_FALSE(same_bits(plain({}), plain({"optimizer.groups=[{match: ['*norm*'], weight_decay: 0.1}]"})));
}

// Frozen values stay, they have no states, and the norm is that of the other gradients.
TEST(UpdateGroups, FrozenParametersStay) {
  const Way& frozen = ways()[1];
  TrainingOptions none = options_of(frozen, {}, 1, 0);
  const Training before = train_on_ranks(none), &after = on_one(frozen), &all = plain({});
  ASSERT_EQ(before.errors, "");
  for (const auto& [name, values] : all.tensors) {
    if (!name.starts_with("model.")) continue;
    const std::string parameter = name.substr(6);
    const bool stays = parameter.starts_with("embedding.") || parameter == "blocks.0.attention.wq.weight" ||
                       (parameter.starts_with("blocks.1.") && parameter.find("norm") == std::string::npos);
    EXPECT_EQ(after.tensors.at(name) == before.tensors.at(name), stays) << name;
    for (const char* state : {"optimizer.m.", "optimizer.v."})
      EXPECT_EQ(after.tensors.contains(state + parameter), !stays) << name;
  }
  EXPECT_EQ(before.losses.size(), 0u);
  EXPECT_NEAR(after.losses[0], all.losses[0], 1e-6);
  EXPECT_LT(after.norms[0], 0.95 * all.norms[0]);
  EXPECT_LT(after.state_bytes[0], all.state_bytes[0]);
  EXPECT_NE(after.memory[0], all.memory[0]) << "gradients of what is frozen take memory";
}

}  // namespace
}  // namespace ring::test
