// Rates of messages, from known times and from ranks of different speed.

#include "bench/message_rates.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "bench/step.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

constexpr std::array<double, 4> kBytes = {4e3, 64e3, 1e6, 64e6};

std::vector<MessageSample> line(double seconds, double rate, const std::array<double, 4>& noise = {1, 1, 1, 1}) {
  std::vector<MessageSample> samples;
  for (std::size_t i = 0; i < kBytes.size(); ++i)
    samples.push_back({kBytes[i], noise[i] * (seconds + kBytes[i] / rate)});
  return samples;
}

TEST(MessageRates, AreThoseOfTheFittedLine) {
  for (const double seconds : {1e-6, 20e-6, 1e-3})
    for (const double rate : {1e9, 266e9}) {
      const MessageTime t = fit_message_time(line(seconds, rate));
      EXPECT_NEAR(t.seconds, seconds, 1e-6 * seconds);
      EXPECT_NEAR(t.bytes_per_second, rate, 1e-6 * rate);
    }
}

// A long message does not hide the information in short ones, nor the other way round.
TEST(MessageRates, NoiseChangesBothRatesByAtMostItsSize) {
  for (const std::array<double, 4>& noise : {std::array{1.1, 0.9, 1.1, 0.9}, {0.9, 0.9, 1.1, 1.1}}) {
    const MessageTime t = fit_message_time(line(20e-6, 266e9, noise));
    EXPECT_NEAR(t.seconds, 20e-6, 0.15 * 20e-6);
    EXPECT_NEAR(t.bytes_per_second, 266e9, 0.15 * 266e9);
  }
}

TEST(MessageRates, NeitherRateIsNegative) {
  const MessageTime less = fit_message_time({{1e3, 1e-6}, {1e6, 2e-3}});  // a fitted line would begin below 0
  EXPECT_EQ(less.seconds, 0);
  EXPECT_GT(less.bytes_per_second, 1e6 / 2e-3 * 0.9);
  EXPECT_LT(less.bytes_per_second, 1e3 / 1e-6 * 1.1);
  const MessageTime falling = fit_message_time({{1e3, 2e-3}, {1e6, 1e-3}});
  EXPECT_EQ(falling.seconds, 0);
  EXPECT_GT(falling.bytes_per_second, 0);
}

// One rank is late, and one is slower. Neither time includes waiting for the other rank, and both ranks queue equally
// often, as a collective requires.
TEST(DistMessageRates, RanksBeginTogetherAndAgree) {
  using std::chrono::milliseconds;
  std::array<double, 2> seconds{};
  std::array<int, 2> times{};
  const auto errors = test::run_ranks(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const ExecContext ctx{Stream::create({Backend::cpu, 0}, 1)};
    if (rank == 1) std::this_thread::sleep_for(milliseconds(400));
    seconds[rank] = measure_message_seconds(ctx, comm, 0.04, [&] {
      ++times[rank];
      std::this_thread::sleep_for(milliseconds(rank == 1 ? 2 : 1));
    });
  });
  ASSERT_EQ(test::joined(errors), "");
  EXPECT_EQ(times[0], times[1]);
  EXPECT_EQ(seconds[0], seconds[1]);
  EXPECT_GE(seconds[0], 2e-3);
  EXPECT_LT(seconds[0], 8e-3) << "400 ms in at most 22 times";
}

}  // namespace
}  // namespace ring
