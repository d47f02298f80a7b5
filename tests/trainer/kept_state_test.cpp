// Tests that processes that lose a peer keep their states and continue from the lowest step among them.

#include "trainer/kept_state.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/comm/ranks.h"

namespace ring {
namespace {

// The state of a small run, with one tensor and one value of each kind.
struct SmallRun {
  explicit SmallRun(float weight = 0, std::int64_t step = 0) : step(step) {
    for (int i = 0; i < 3; ++i) weights.data<float>()[i] = weight + static_cast<float>(i);
    state.add("model.w", weights);
    state.add("empty", Tensor::zeros({0}, DType::f32, stream));
    state.add("train.step", &this->step);
    state.add("train.seconds", &seconds, StateScope::rank0);
    state.add("text", &text);
  }
  Stream stream = Stream::cpu(1);
  Tensor weights = Tensor::zeros({3}, DType::f32, stream);
  std::int64_t step;
  double seconds = 0;
  std::string text;
  State state;
};

StepReport report(std::int64_t step) {
  StepReport r;
  r.step = step;
  r.loss = 0.1 + static_cast<double>(step);
  r.lr = 1e-300;
  r.trained = (std::int64_t{1} << 53) - 1;
  r.auxiliary_loss = std::nextafter(1.0, 2.0);
  r.sources = {{2.5, 3}, {-0.0, 7}};
  return r;
}

// Ranks 1 and 3 have finished step 6 and rank 2 only step 5; rank 0 is a new process.
TEST(KeptState, AllRanksContinueFromTheLowestStep) {
  const auto errors = test::run_ranks(4, [](Communicator& host) {
    const std::int64_t step = host.rank() == 2 ? 5 : 6;
    KeptState kept;
    if (host.rank() > 0) {
      SmallRun before(static_cast<float>(10 * step), step);
      before.seconds = 1.0 / 3;
      before.text = "bad steps of step " + std::to_string(step);
      kept.keep(before.state, before.stream, step, true, report(step));
    }
    const std::optional<KeptStates> all = kept.compare(host);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->step, 5);
    EXPECT_EQ(all->donor, 2);
    EXPECT_EQ(all->holders, (std::vector<bool>{false, false, true, false}));
    EXPECT_EQ(all->replaced, std::vector<int>{0});
    EXPECT_FALSE(all->recorded) << "rank 0 is new";
    EXPECT_GT(all->kept_ms, 0);
    const StepReport expected = report(5);
    EXPECT_EQ(all->last.step, 5);
    EXPECT_EQ(all->last.loss, expected.loss);
    EXPECT_EQ(all->last.lr, expected.lr);
    EXPECT_EQ(all->last.trained, expected.trained);
    EXPECT_EQ(all->last.auxiliary_loss, expected.auxiliary_loss);
    ASSERT_EQ(all->last.sources.size(), 2u);
    EXPECT_EQ(all->last.sources[1].targets, 7);
    SmallRun after;
    kept.load(*all, after.state, after.stream, host);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(after.weights.data<float>()[i], static_cast<float>(50 + i));
    EXPECT_EQ(after.step, 5);
    EXPECT_EQ(after.seconds, 1.0 / 3);
    EXPECT_EQ(after.text, "bad steps of step 5");
    EXPECT_FALSE(kept.holds());
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST(KeptState, RankZeroHasRecordedAStepThatItFinishedOrPassed) {
  const auto recorded = [](std::int64_t step, bool finished) {
    bool result = false;
    const auto errors = test::run_ranks(2, [&](Communicator& host) {
      SmallRun run;
      KeptState kept;
      const bool leads = host.rank() == 0;
      kept.keep(run.state, run.stream, leads ? step : 5, leads ? finished : true, {});
      const std::optional<KeptStates> all = kept.compare(host);
      if (leads) result = all->recorded;
      EXPECT_TRUE(all->replaced.empty());
      EXPECT_FALSE(all->last.auxiliary_loss);
    });
    EXPECT_EQ(test::joined(errors), "");
    return result;
  };
  EXPECT_TRUE(recorded(5, true));
  EXPECT_FALSE(recorded(5, false));
  EXPECT_TRUE(recorded(6, false));
  EXPECT_FALSE(recorded(4, false));
}

TEST(KeptState, NothingIsKeptAtFirst) {
  const auto errors = test::run_ranks(2, [](Communicator& host) { EXPECT_FALSE(KeptState().compare(host)); });
  EXPECT_EQ(test::joined(errors), "");
}

}  // namespace
}  // namespace ring
