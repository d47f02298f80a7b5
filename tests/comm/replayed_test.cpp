#include "comm/replayed.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A fixture that plays the device, which counts the replays.
class Replayed : public testing::Test {
 protected:
  static std::shared_ptr<void> memory() {
    return {new ReplayCounts[ReplayedOperations::kMost], [](void* p) { delete[] static_cast<ReplayCounts*>(p); }};
  }
  std::string stuck_after(seconds s) {
    now_ += s;
    return operations_.find_timed_out(now_, milliseconds(60'000)).value_or("");
  }

  ReplayedOperations operations_{memory()};
  ReplayedOperations::Clock::time_point now_ = ReplayedOperations::Clock::now();
};

TEST_F(Replayed, AnOperationThatIsNotReplayedIsNotStuck) {
  operations_.add("a");
  for (int i = 0; i < 200; ++i) ASSERT_EQ(stuck_after(seconds(1)), "");
}

TEST_F(Replayed, AnOperationThatDoesNotEndIsNamed) {
  operations_.add("a");
  ReplayCounts& b = operations_.add("b");
  for (int replay = 0; replay < 5; ++replay) ++b.started, ++b.done;
  EXPECT_EQ(stuck_after(seconds(1)), "");
  ++b.started;
  EXPECT_EQ(stuck_after(seconds(100)), "") << "its time runs from when it was seen";
  EXPECT_EQ(stuck_after(seconds(60)), "");
  EXPECT_EQ(stuck_after(seconds(1)), "b");
  ++b.done;
  EXPECT_EQ(stuck_after(seconds(1)), "");
}

TEST_F(Replayed, EachReplayHasTheFullTimeout) {
  ReplayCounts& a = operations_.add("a");
  for (int replay = 0; replay < 10; ++replay) {
    ++a.started;  // every look finds an operation at work
    ASSERT_EQ(stuck_after(seconds(50)), "");
    ++a.done;
  }
}

TEST_F(Replayed, NewOperationsReplaceTheOldest) {
  ReplayCounts& old = operations_.add("old");
  ++old.started;
  EXPECT_EQ(stuck_after(seconds(1)), "");
  for (std::size_t i = 1; i < ReplayedOperations::kMost; ++i) operations_.add("other");
  EXPECT_EQ(stuck_after(seconds(61)), "old");
  ++old.done;
  ReplayCounts& again = operations_.add("new");
  EXPECT_EQ(&again, &old);
  ++again.started;
  EXPECT_EQ(stuck_after(seconds(1)), "");
  EXPECT_EQ(stuck_after(seconds(61)), "new");
}

}  // namespace
}  // namespace ring
