// The record of communication operations.

#include "comm/flight_log.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "comm/operation.h"

namespace ring {
namespace {

class Flights : public testing::Test {
 protected:
  static Operation op(const std::string& text, Operation::Kind kind = Operation::Kind::collective) {
    return {text, Site::current(), kind};
  }
  const FlightEntry& entry(std::int64_t sequence) const { return ring_->entries[FlightRing::slot(sequence)]; }
  std::unique_ptr<FlightRing> ring_ = std::make_unique<FlightRing>();
};

TEST_F(Flights, AnOperationPassesThroughItsStates) {
  FlightLog log(*ring_, "dp", 2, 4);
  const RecordedOperation f = log.record_queued(op("all_reduce sum of f32[1000]"));
  const FlightEntry& e = entry(1);
  EXPECT_STREQ(e.text.data(), "all_reduce sum of f32[1000]");
  EXPECT_EQ(std::strncmp(e.site.data(), "job/flight_test.cpp:", 20), 0) << e.site.data();
  EXPECT_EQ(e.state, FlightState::queued);
  f.mark_started();
  EXPECT_EQ(e.state, FlightState::started);
  EXPECT_EQ(ring_->groups[0].started, 1);
  EXPECT_EQ(ring_->groups[0].done, 0);
  f.mark_ended(true);
  EXPECT_EQ(e.state, FlightState::done);
  EXPECT_EQ(ring_->groups[0].done, 1);
  EXPECT_LE(e.queued_ns, e.started_ns);
  EXPECT_LE(e.started_ns, e.ended_ns);
  EXPECT_STREQ(ring_->groups[0].name.data(), "dp");
  EXPECT_EQ(ring_->groups[0].first_rank, 2);
}

// Numbers of a group's operations are equal on all ranks, whichever ranks exchange messages.
TEST_F(Flights, PairwiseOperationsDoNotCount) {
  FlightLog log(*ring_, "cp", 0, 2);
  log.record_queued(op("barrier"));
  log.record_queued(op("send", Operation::Kind::pairwise));
  log.record_queued(op("exchange", Operation::Kind::exchange));
  EXPECT_EQ(entry(2).number, 1);
  EXPECT_TRUE(entry(2).pairwise);
  EXPECT_EQ(entry(3).number, 2);
  EXPECT_EQ(ring_->groups[0].queued, 2);
}

TEST_F(Flights, OldOperationsAreReplacedAndTheirLateUpdatesIgnored) {
  FlightLog log(*ring_, "dp", 0, 2);
  const RecordedOperation first = log.record_queued(op("first"));
  for (int i = 0; i < FlightRing::kEntries; ++i) log.record_queued(op("later"));
  first.mark_ended(true);
  EXPECT_STREQ(entry(1).text.data(), "later");
  EXPECT_EQ(entry(1).state, FlightState::queued);
}

TEST_F(Flights, LongTextsAreCut) {
  FlightLog log(*ring_, std::string(200, 'g'), 0, 2);
  log.record_queued(op(std::string(1000, 'x')));
  EXPECT_EQ(std::strlen(entry(1).text.data()), entry(1).text.size() - 1);
  EXPECT_EQ(std::strlen(ring_->groups[0].name.data()), ring_->groups[0].name.size() - 1);
}

TEST_F(Flights, GroupsBeyondTheLimitAreNotRecorded) {
  for (int i = 0; i < FlightRing::kGroups + 5; ++i) FlightLog(*ring_, "g", i, 2).record_queued(op("barrier"));
  EXPECT_EQ(ring_->queued, FlightRing::kGroups);
}

// Steps run while a checkpoint is written.
TEST_F(Flights, TwoThreadsMayRecord) {
  constexpr int kEach = 5'000;
  const auto work = [&](const char* name, int rank) {
    FlightLog log(*ring_, name, rank, 2);
    for (int i = 0; i < kEach; ++i) {
      const RecordedOperation f = log.record_queued(op(name));
      f.mark_started();
      f.mark_ended(true);
    }
  };
  std::thread other([&] { work("background", 0); });
  work("dp", 1);
  other.join();
  EXPECT_EQ(ring_->queued, 2 * kEach);
  for (int g = 0; g < 2; ++g) EXPECT_EQ(ring_->groups[static_cast<std::size_t>(g)].queued, kEach);
}

}  // namespace
}  // namespace ring
