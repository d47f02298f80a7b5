// GPUs that become slow, and GPUs that only seem slow.

#include "comm/gpu_pace.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/pace.h"
#include "comm/self.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

using Windows = std::vector<GpuWindow>;

GpuWindow gpu(double mhz, double seconds, std::uint64_t throttle = 0) {
  GpuWindow w{.sm_mhz = mhz, .step_seconds = seconds, .throttle = throttle};
  std::strcpy(w.bus.data(), "0000:3b:00.0");
  return w;
}

// Returns the windows of two ranks. A slow GPU 1 slows down the steps of both.
Windows ranks(double mhz_of_1, double seconds, std::uint64_t throttle = 0) {
  return {gpu(1980, seconds), gpu(mhz_of_1, seconds, throttle)};
}

std::size_t found_in(SlowGpuDetector& detector, int windows, const Windows& all) {
  std::size_t found = 0;
  for (int i = 0; i < windows; ++i) found += detector.add_window(all).size();
  return found;
}

TEST(ClockJudge, NamesAGpuOnceWithItsClockAndStepsBefore) {
  SlowGpuDetector detector;
  EXPECT_EQ(found_in(detector, 10, ranks(1980, 0.420)), 0u);
  EXPECT_EQ(found_in(detector, 2, ranks(1200, 0.512, 0x20)), 0u);
  const auto found = detector.add_window(ranks(1200, 0.512, 0x20));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].bus, "0000:3b:00.0");
  EXPECT_EQ(found[0].sm_mhz, 1200);
  EXPECT_EQ(found[0].usual_mhz, 1980);
  EXPECT_EQ(found[0].seconds, 0.512);
  EXPECT_EQ(found[0].usual_seconds, 0.420);
  EXPECT_EQ(found[0].throttle, 0x20u);
  EXPECT_EQ(found_in(detector, 10, ranks(1200, 0.512)), 0u);
  EXPECT_EQ(found_in(detector, 10, ranks(1980, 0.420)), 0u);
  EXPECT_EQ(found_in(detector, 10, ranks(1200, 0.512)), 0u) << "once";
}

TEST(ClockJudge, NeedsALowerClockAndLongerSteps) {
  SlowGpuDetector detector;
  found_in(detector, 10, ranks(1980, 0.420));
  EXPECT_EQ(found_in(detector, 10, ranks(1980, 0.600)), 0u) << "something else takes longer";
  SlowGpuDetector light;
  found_in(light, 10, ranks(1980, 0.420));
  EXPECT_EQ(found_in(light, 10, ranks(1500, 0.421)), 0u) << "it has less to do";
}

TEST(ClockJudge, OneGoodWindowResetsTheCount) {
  SlowGpuDetector detector;
  found_in(detector, 20, ranks(1980, 0.420));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(found_in(detector, 2, ranks(1200, 0.512)), 0u);
    EXPECT_EQ(found_in(detector, 1, ranks(1980, 0.420)), 0u);
  }
}

TEST(ClockJudge, FindsNothingWithoutAClockOrAnEarlierOne) {
  SlowGpuDetector detector;
  EXPECT_EQ(found_in(detector, 5, Windows{gpu(0, 0.4), gpu(0, 0.9)}), 0u);
  EXPECT_EQ(found_in(detector, 10, ranks(1200, 0.512)), 0u) << "slow from the start is what is usual";
}

// The readings of each rank reach every rank.
TEST(DistPace, AGpuThatBecomesSlowIsFoundByAllRanks) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  constexpr int kGood = 20 * SlowGpuDetector::kWindows, kSteps = 2 * kGood + 1;
  std::vector<std::vector<SlowGpu>> found(2);
  const auto errors = test::run_ranks(2, [&](Communicator& c) {
    int step = 0;
    Pace pace(c, [&] { return step < kGood ? gpu(1980, 0.420) : gpu(c.rank() == 1 ? 1200 : 1980, 0.512, 0x20); });
    for (; step < kSteps; ++step) {
      pace.on_step(0);
      for (const SlowGpu& s : pace.slow_gpus()) found[static_cast<std::size_t>(c.rank())].push_back(s);
    }
  });
  EXPECT_EQ(test::joined(errors), "");
  for (const auto& all : found) {
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].rank, 1);
    EXPECT_EQ(all[0].bus, "0000:3b:00.0");
    EXPECT_EQ(all[0].seconds, 0.512);
    EXPECT_EQ(all[0].usual_seconds, 0.420);
  }
}

// A run on one GPU has no other ranks to compare with, but still times its steps.
TEST(Pace, OneRankTimesItsSteps) {
  const auto self = make_self_communicator();
  std::vector<GpuWindow> windows;
  Pace pace(*self, [&] { return windows.emplace_back(gpu(1980, 0)); });
  for (int i = 0; i < 20 * 3 + 1; ++i) EXPECT_TRUE(pace.on_step(0).empty());
  EXPECT_EQ(windows.size(), 3u);
  EXPECT_TRUE(pace.slow_gpus().empty());
}

}  // namespace
}  // namespace ring
