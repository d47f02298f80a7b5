#include "comm/pending.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// An event that the test completes or breaks.
struct Told final : EventImpl {
  bool is_done = false, broken = false;
  bool done() const override {
    if (broken) fail("the device failed");
    return is_done;
  }
  void synchronize() const override {}
};

struct Queued {
  std::shared_ptr<Told> after = std::make_shared<Told>(), done = std::make_shared<Told>();
};

class Pending : public testing::Test {
 protected:
  Queued add(const std::string& text) {
    Queued q;
    pending_.add(text, Event(q.after), Event(q.done));
    return q;
  }
  std::string stuck() { return pending_.find_timed_out(now_, milliseconds(60'000)).value_or(""); }
  std::string stuck_after(seconds s) {
    now_ += s;
    return stuck();
  }

  PendingOperations pending_;
  PendingOperations::Clock::time_point now_ = PendingOperations::Clock::now();
};

TEST_F(Pending, ALongComputationBeforeItIsNotAStall) {
  const Queued q = add("a");
  for (int i = 0; i < 200; ++i) ASSERT_EQ(stuck_after(seconds(1)), "");
  q.after->is_done = true;
  EXPECT_EQ(stuck_after(seconds(1)), "");
  EXPECT_EQ(stuck_after(seconds(60)), "");
  EXPECT_EQ(stuck_after(seconds(1)), "a");
}

TEST_F(Pending, TimeRunsFromTheEndOfTheOperationBefore) {
  const Queued a = add("a"), b = add("b");
  a.after->is_done = b.after->is_done = true;
  EXPECT_EQ(stuck(), "");
  EXPECT_EQ(stuck_after(seconds(50)), "");
  a.done->is_done = true;
  EXPECT_EQ(stuck_after(seconds(1)), "");
  EXPECT_EQ(stuck_after(seconds(60)), "");
  EXPECT_EQ(stuck_after(seconds(1)), "b");
  b.done->is_done = true;
  EXPECT_EQ(stuck_after(seconds(100)), "");
}

TEST_F(Pending, WithoutAnOperationBeforeTimeRunsAtOnce) {
  pending_.add("a", {}, Event(std::make_shared<Told>()));
  EXPECT_EQ(stuck(), "");
  EXPECT_EQ(stuck_after(seconds(61)), "a");
}

TEST_F(Pending, AFailedDeviceNamesTheOperation) {
  const Queued q = add("a");
  q.after->broken = true;
  try {
    stuck();
    FAIL() << "a failure went unnoticed";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "a: the device failed");
  }
}

}  // namespace
}  // namespace ring
