// Tests that processes that lose a peer keep their states and continue from the lowest step among them, or with islands
// from their own steps.

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
      kept.keep(before.state, before.stream,
                {.step = step, .finished = true, .last = report(step), .earlier = report(step - 1)});
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
    EXPECT_EQ(all->earlier.step, 4);
    EXPECT_EQ(all->earlier.auxiliary_loss, report(4).auxiliary_loss);
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

// Rank 1 keeps the state of step 3, and rank 0 is new. Ranks are threads that share one GPU, or CPUs.
void expect_state_on_devices(Device device) {
  const auto errors = test::run_ranks(2, [device](Communicator& host) {
    const Stream stream = Stream::create(device, 1);
    const auto state_of = [&](const Tensor& weights, const Tensor& codes, std::int64_t* step) {
      State state;
      state.add("codes", codes);
      state.add("model.w", weights);
      state.add("train.step", step);
      return state;
    };
    const auto download = [&](const Tensor& t) {
      std::vector<std::byte> bytes(t.bytes());
      stream.impl().copy(bytes.data(), t.raw(), t.bytes());
      stream.synchronize();
      return bytes;
    };
    const auto bytes = [](std::size_t n) {
      std::vector<std::byte> out;
      for (std::size_t i = 0; i < n; ++i) out.push_back(static_cast<std::byte>(i * 7 + 1));
      return out;
    };
    const Tensor weights = Tensor::zeros({1000}, DType::f32, stream), codes = Tensor::zeros({13}, DType::u8, stream);
    std::int64_t step = 3;
    KeptState kept;
    if (host.rank() == 1) {
      stream.impl().upload(weights.raw(), bytes(4000).data(), 4000);
      stream.impl().upload(codes.raw(), bytes(13).data(), 13);
      kept.keep(state_of(weights, codes, &step), stream, {.step = step, .last = report(step)});
    }
    const Tensor after = Tensor::zeros({1000}, DType::f32, stream), others = Tensor::zeros({13}, DType::u8, stream);
    step = 0;
    const std::optional<KeptStates> all = kept.compare(host);
    ASSERT_TRUE(all);
    State state = state_of(after, others, &step);
    kept.load(*all, state, stream, host);
    EXPECT_TRUE(download(after) == bytes(4000));
    EXPECT_TRUE(download(others) == bytes(13));
    EXPECT_EQ(step, 3);
  });
  EXPECT_EQ(test::joined(errors), "");
}
TEST(KeptState, TensorsKeepTheirBytes) { expect_state_on_devices({}); }
TEST(GpuKeptState, TensorsKeepTheirBytes) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  expect_state_on_devices({Backend::cuda, 0});
}

TEST(KeptState, RankZeroHasRecordedAStepThatItFinishedOrPassed) {
  const auto recorded = [](std::int64_t step, bool finished) {
    bool result = false;
    const auto errors = test::run_ranks(2, [&](Communicator& host) {
      SmallRun run;
      KeptState kept;
      const bool leads = host.rank() == 0;
      kept.keep(run.state, run.stream, {.step = leads ? step : 5, .finished = !leads || finished});
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

// The state of rank `rank` of a run with islands of two ranks. Each rank has one element of each tensor of its island.
struct IslandRun {
  explicit IslandRun(int rank, float value = 0, std::int64_t step = 0) : step(step) {
    add("model.w", true, value), add("outer.momentum.w", true, value + 1);
    for (int i = 0; i < 3; ++i) {
      const std::string prefix = i == 0 ? "optimizer." : "islands." + std::to_string(i) + ".optimizer.";
      add("islands." + std::to_string(i) + ".model.w", i == rank / 2, value + 2);
      add(prefix + "m", i == rank / 2, value + 3);
    }
    state.add("train.step", &this->step);
  }
  void add(const std::string& name, bool own, float value) {
    const Tensor t = Tensor::zeros({own ? 1 : 0}, DType::f32, stream);
    if (own) t.data<float>()[0] = value;
    state.add({name, {2}, {0}, t});
  }
  float value(const std::string& name) const { return state.tensors().at(name).local.data<float>()[0]; }
  Stream stream = Stream::cpu(1);
  std::int64_t step;
  State state;
};

const IslandExchange kExchange{4, 400, 40, 4};

KeptFacts facts_of(int rank, std::int64_t step, const IslandExchange& exchange = kExchange) {
  return {.step = step,
          .finished = true,
          .island = {.islands = 3, .island = rank / 2, .size = 2, .position = rank % 2, .exchange = exchange},
          .last = report(step)};
}

// Islands 0 and 2 have done steps 5 and 7. Rank 2 of island 1 stays, and rank 3 is new.
TEST(KeptState, ALostIslandReceivesTheOuterWeights) {
  const auto errors = test::run_ranks(6, [](Communicator& host) {
    const int rank = host.rank(), island = rank / 2;
    const std::int64_t steps = island == 0 ? 5 : 7;
    const IslandRun before(rank, static_cast<float>(10 * rank), steps);
    KeptState kept;
    if (rank == 2) kept.keep_nothing();
    if (island != 1) kept.keep(before.state, before.stream, facts_of(rank, steps));
    EXPECT_EQ(kept.holds(), rank != 3);
    const std::optional<KeptStates> all = kept.compare(host, 3);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->step, 7);
    EXPECT_EQ(all->donor, 4);
    EXPECT_EQ(all->holders, (std::vector<bool>{true, true, false, false, true, true}));
    EXPECT_EQ(all->replaced, std::vector<int>{3});
    EXPECT_EQ(all->lost_islands(), std::vector<int>{1});
    EXPECT_EQ(all->exchange(), kExchange);
    EXPECT_FALSE(all->renumbered);
    EXPECT_FALSE(all->recorded) << "rank 0 has not done step 7";
    IslandRun after(rank, -1);
    kept.load(*all, after.state, after.stream, host);
    EXPECT_FALSE(kept.holds());
    const auto from = static_cast<float>(10 * (island == 1 ? 4 + rank % 2 : rank));
    const std::string own = "islands." + std::to_string(island) + ".";
    EXPECT_EQ(after.value("model.w"), from);
    EXPECT_EQ(after.value("outer.momentum.w"), from + 1);
    EXPECT_EQ(after.value(island == 0 ? "optimizer.m" : own + "optimizer.m"), from + 3);
    EXPECT_EQ(after.value(own + "model.w"), island == 1 ? 1 : from + 2) << "weights of island 1 follow from theta";
    EXPECT_EQ(after.step, steps);
  });
  EXPECT_EQ(test::joined(errors), "");
}

// Island 0 of three is lost. Islands 1 and 2 become islands 0 and 1.
TEST(KeptState, IslandsMayHaveNewNumbers) {
  const auto errors = test::run_ranks(4, [](Communicator& host) {
    const int rank = host.rank(), island = rank / 2, before_rank = rank + 2;
    const IslandRun before(before_rank, static_cast<float>(before_rank), 7);
    KeptState kept;
    kept.keep(before.state, before.stream, facts_of(before_rank, 7));
    const std::optional<KeptStates> all = kept.compare(host, 2);
    ASSERT_TRUE(all);
    EXPECT_TRUE(all->all_hold());
    EXPECT_TRUE(all->renumbered);
    IslandRun after(rank, -1);
    kept.load(*all, after.state, after.stream, host);
    const auto value = static_cast<float>(before_rank);
    EXPECT_EQ(after.value("model.w"), value);
    EXPECT_EQ(after.value(island == 0 ? "islands.0.model.w" : "islands.1.model.w"), value + 2);
    EXPECT_EQ(after.value(island == 0 ? "optimizer.m" : "islands.1.optimizer.m"), value + 3);
  });
  EXPECT_EQ(test::joined(errors), "");
}

// Islands 0 and 2 kept their states. Island 1 was lost or, if islands are renumbered, is new.
TEST(KeptState, AnAdditionalIslandAddsNothingToTheAverages) {
  KeptStates all{.step = 7, .donor = 2, .holders = {true, false, true}, .islands = 3, .last = report(7)};
  StepReport own = report(7);
  own.loss = 3;
  EXPECT_EQ(all.report_to_average(own, 0)->loss, 3) << "its own report";
  EXPECT_FALSE(all.report_to_average(report(6), 0)->accepted) << "island 0 has passed over step 7";
  EXPECT_FALSE(all.report_to_average({}, 1)) << "island 1 was lost, and its report of step 7 with it";
  all.renumbered = true;
  const std::optional<StepReport> additional = all.report_to_average({}, 1);
  ASSERT_TRUE(additional);
  EXPECT_FALSE(additional->accepted);
  EXPECT_EQ(additional->step, 7);
  EXPECT_EQ(additional->sources.size(), report(7).sources.size());
  all.last.step = 6;
  EXPECT_FALSE(all.report_to_average({}, 1)) << "the donor has no report either";
}

// Island 0 has not combined weights yet that island 1 has. The ranks of island 2 are at different steps.
TEST(KeptState, OnlyIslandsWithTheLatestExchangeAreWhole) {
  const auto errors = test::run_ranks(6, [](Communicator& host) {
    const int rank = host.rank();
    const std::int64_t step = rank < 2 ? 8 : rank < 5 ? 9 : 10;
    const IslandRun run(rank, 0, step);
    KeptState kept;
    kept.keep(run.state, run.stream, facts_of(rank, step, rank < 2 ? kExchange : IslandExchange{8, 800, 80, 8}));
    const std::optional<KeptStates> all = kept.compare(host, 3);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->step, 9);
    EXPECT_EQ(all->lost_islands(), (std::vector<int>{0, 2}));
    EXPECT_EQ(all->exchange().combined, 8);
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST(KeptState, WithoutAWholeIslandNothingIsKept) {
  const auto errors = test::run_ranks(2, [](Communicator& host) {
    KeptState kept;
    if (host.rank() == 0) kept.keep_nothing();
    EXPECT_FALSE(kept.compare(host, 2));
    EXPECT_FALSE(kept.compare(host)) << "a process that stays without a state does not hold the run's";
  });
  EXPECT_EQ(test::joined(errors), "");
}

}  // namespace
}  // namespace ring
