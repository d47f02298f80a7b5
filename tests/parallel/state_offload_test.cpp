// Optimizer states in host memory, in every layout: results are bit-identical, also if a run resumes with another
// setting.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/gloo/gloo.h"
#include "core/check.h"
#include "tests/late_stream.h"
#include "tests/parallel/training.h"

namespace ring::test {
namespace {

const std::vector<Layout>& state_layouts() {
  static const std::vector<Layout> all = {{"one", 1, {}},
                                          {"dp", 2, {}},
                                          {"zero1", 2, {"parallel.zero=1"}},
                                          {"zero2", 2, {"parallel.zero=2"}},
                                          {"zero3", 2, {"parallel.zero=3"}},
                                          {"cp", 2, {"parallel.cp=2"}},
                                          {"tp", 2, {"parallel.tp=2"}},
                                          {"zero3_tp", 4, {"parallel.zero=3", "parallel.tp=2", "train.micro_batch=2"}}};
  return all;
}

class DistStateOffload : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (GetParam().ranks > 1 && !gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  static Training train(const std::vector<std::string>& more) {
    TrainingOptions o;
    o.ranks = GetParam().ranks;
    o.steps = 4;
    o.overrides = GetParam().overrides;
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    const Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
};

TEST_P(DistStateOffload, GivesTheSameBits) {
  const Training here = train({});
  for (const std::string& m : here.memory) EXPECT_EQ(m.find("on the host"), std::string::npos) << m;
  for (const char* offload : {"states", "all", "weights"})
    for (const auto& [bytes, staging] :
         {std::pair{1024, "0"}, {1024, "20000"}, {10'000, "0"}, {10'000, "auto"}, {1 << 26, "0"}}) {
      if (std::string(offload) == "weights" && bytes != 10'000) continue;
      const Training away = train({str("optimizer.offload=", offload), str("optimizer.offload_chunk_bytes=", bytes),
                                   str("optimizer.offload_staging_bytes=", staging)});
      EXPECT_TRUE(same_bits(here, away)) << offload << ", chunks of " << bytes << " of " << staging;
      for (const std::string& m : away.memory) EXPECT_NE(m.find("on the host"), std::string::npos) << m;
    }
}

// Weights are read from the host while copies of the last update and of the previous part may still be running.
TEST(StateOffload, WeightsMayBeCopiedAsLateAsEventsAllow) {
  TrainingOptions o;
  o.steps = 4;
  o.validate_often = o.validate = true;
  o.overrides = {"train.micro_batch=1", "model.layers=3"};
  const Training here = train_on_ranks(o);
  o.overrides.insert(o.overrides.end(), {"optimizer.offload=weights", "optimizer.offload_chunk_bytes=1024", ""});
  for (const char* staging : {"0", "20000", "auto"}) {
    o.overrides.back() = str("optimizer.offload_staging_bytes=", staging);
    const LateCopies late;
    const Training away = train_on_ranks(o);
    EXPECT_EQ(away.errors, "");
    EXPECT_TRUE(same_bits(here, away)) << staging;
    EXPECT_EQ(away.validation, here.validation);
  }
}

TEST(StateOffload, WeightsOfEveryKindOfLayerMayBeOnTheHost) {
  for (const std::vector<std::string>& model : std::vector<std::vector<std::string>>{
           {"model.mixers=[gated_delta_net, attention]", "model.norm_place=sandwich", "model.norm_zero_centered=true"},
           {"model.norm_place=reordered"},
           {"model.norm_place=post"}}) {
    TrainingOptions o;
    o.steps = 3;
    o.overrides = model;
    const Training here = train_on_ranks(o);
    o.overrides.insert(o.overrides.end(), {"optimizer.offload=weights", "optimizer.offload_chunk_bytes=10000"});
    const Training away = train_on_ranks(o);
    EXPECT_EQ(away.errors, "");
    EXPECT_TRUE(same_bits(here, away)) << model[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DistStateOffload, testing::ValuesIn(state_layouts()),
                         [](const auto& i) { return i.param.name; });

class DistStateOffloadResume : public testing::Test {
 protected:
  ~DistStateOffloadResume() override { std::filesystem::remove_all(folder_); }
  static Training train(int ranks, int steps, const std::string& offload, const std::string& load,
                        const std::string& save, std::int64_t staging = 0) {
    TrainingOptions o;
    o.ranks = ranks;
    o.steps = steps;
    o.load = load;
    o.save = save;
    o.overrides = {"optimizer.offload=" + offload, "optimizer.offload_chunk_bytes=5000",
                   str("optimizer.offload_staging_bytes=", staging), str("parallel.zero=", ranks > 1 ? 2 : 0)};
    const Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-state-offload-" + std::to_string(getpid()))).string();
};

TEST_F(DistStateOffloadResume, ResumesWithAnyOtherSetting) {
  for (const int ranks : {1, 2}) {
    if (ranks > 1 && !gloo_available()) continue;
    const Training whole = train(ranks, 6, "none", "", "");
    for (const std::string before : {"none", "states", "all", "weights"}) {
      const std::string folder = str(folder_, "/", before, ranks);
      const Training first = train(ranks, 3, before, "", folder, 40'000);
      for (const std::string after : {"none", "states", "all", "weights"}) {
        if (after == before) continue;
        const Training second = train(ranks, 3, after, first.checkpoint, "", after == "all" ? 0 : 100'000);
        EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
        EXPECT_EQ(second.tensors, whole.tensors) << before << " to " << after << ", " << ranks << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace ring::test
