#include "kernels/launch_cache.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "tests/late_stream.h"

namespace ring::test {
namespace {

class RecordingStream final : public LateStream {
 public:
  bool recording() const override { return records; }
  Event record() override {
    EXPECT_FALSE(records) << "an event in a recording";
    return LateStream::record();
  }
  bool records = false;
};

class LaunchCaches : public testing::Test {
 protected:
  struct Plan {
    Plan(std::set<int>& alive, int key) : alive(alive), key(key) { alive.insert(key); }
    ~Plan() { alive.erase(key); }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    std::set<int>& alive;
    const int key;
  };

  const Plan* find(int key) {
    return cache_.find(key, [this](int k) {
      made_.push_back(k);
      return k < 0 ? nullptr : std::make_unique<Plan>(alive_, k);
    });
  }
  // Queues a copy that reads the plan when it runs, which is when someone waits for the stream.
  void launch(int key) { stream_.copy(&ran_.emplace_back(), &find(key)->key, sizeof(int)); }

  std::set<int> alive_;
  std::vector<int> made_;
  std::deque<int> ran_;
  RecordingStream stream_;
  LaunchCache<int, Plan> cache_{stream_, 2};
};

TEST_F(LaunchCaches, DropTheLeastRecentlyUsed) {
  for (const int key : {1, 2, 1, 3, 1, 2}) find(key);
  EXPECT_EQ(made_, (std::vector{1, 2, 3, 2}));
}

TEST_F(LaunchCaches, RememberFailures) {
  EXPECT_EQ(find(-1), nullptr);
  EXPECT_EQ(find(-1), nullptr);
  EXPECT_EQ(made_.size(), 1u);
}

TEST_F(LaunchCaches, KeepPlansOfQueuedWork) {
  for (const int key : {1, 2, 3, 4, 5}) launch(key);
  EXPECT_EQ(alive_, (std::set{1, 2, 3, 4, 5})) << "none has run";
  stream_.synchronize();
  EXPECT_EQ(ran_, (std::deque{1, 2, 3, 4, 5}));
  launch(6);
  EXPECT_EQ(alive_, (std::set{4, 5, 6})) << "4 goes behind what was queued when 6 took its place";
  stream_.synchronize();
  launch(7);
  EXPECT_EQ(alive_, (std::set{5, 6, 7}));
}

TEST_F(LaunchCaches, KeepPlansThatARecordingMayReplay) {
  find(1);
  find(2);
  stream_.records = true;
  for (const int key : {2, 3, 4}) find(key);
  stream_.records = false;
  for (const int key : {5, 6, 7, 8}) find(key);
  stream_.synchronize();
  find(9);  // evicts 7
  for (const int key : {2, 3, 4}) EXPECT_TRUE(alive_.contains(key)) << key;
  for (const int key : {1, 5, 6}) EXPECT_FALSE(alive_.contains(key)) << key;
  EXPECT_TRUE(alive_.contains(8)) << "the others take none of its room";
}

}  // namespace
}  // namespace ring::test
