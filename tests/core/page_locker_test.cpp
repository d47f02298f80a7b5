#include "core/page_locker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

namespace ring {
namespace {

constexpr std::size_t kSlab = std::size_t{2} << 20;

// A fake device that records which memory it was asked to lock.
class PageLockerTest : public testing::Test {
 protected:
  PageLocker locker(int threads = 2, std::optional<int> node = {}) {
    return PageLocker(
        {[this](std::byte* p, std::size_t bytes) { lock(p, bytes); }, [this](std::byte* p) { unlock(p); }}, threads,
        node, kSlab);
  }
  void lock(std::byte* p, std::size_t bytes) {
    if (gate_) gate_->wait();
    const std::lock_guard held(mutex_);
    if (calls_++ >= most_) fail("no more than that");
    EXPECT_TRUE(locked_.emplace(p).second) << "locked twice";
    bytes_ += bytes;
  }
  void unlock(std::byte* p) {
    const std::lock_guard held(mutex_);
    EXPECT_EQ(locked_.erase(p), 1u) << "it was not locked";
  }
  std::size_t locked() {
    const std::lock_guard held(mutex_);
    return locked_.size();
  }
  static bool becomes_true(const std::function<bool()>& is) {
    for (int i = 0; i < 2000 && !is(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return is();
  }

  std::mutex mutex_;
  std::set<std::byte*> locked_;
  std::size_t bytes_ = 0;
  int calls_ = 0, most_ = 1 << 20;
  std::latch* gate_ = nullptr;  // no memory is locked until the latch opens
};

TEST_F(PageLockerTest, AllSlabsAreLockedOnceInTheBackground) {
  PageLocker pages = locker();
  const std::size_t bytes = 5 * kSlab + 12345;
  {
    const auto memory = pages.allocate(bytes);
    EXPECT_TRUE(becomes_true([&] { return locked() == 6; })) << locked();
    EXPECT_EQ(bytes_, 5 * kSlab + 4 * 4096) << "whole pages";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % kSlab, 0u);
    EXPECT_TRUE(becomes_true([&] { return pages.facts().locked == bytes; }));
    EXPECT_EQ(pages.facts().taken, bytes);
  }
  EXPECT_EQ(locked(), 0u);
  EXPECT_EQ(pages.facts().taken, 0u);
}

TEST_F(PageLockerTest, TheHostMayUseMemoryThatIsBeingLocked) {
  std::latch gate(1);
  gate_ = &gate;
  PageLocker pages = locker();
  const std::size_t bytes = 4 * kSlab;
  const auto memory = pages.allocate(bytes);
  auto* const begin = static_cast<unsigned char*>(memory.get());
  for (std::size_t i = 0; i < bytes; i += 1000) ASSERT_EQ(begin[i], 0);
  std::memset(begin, 7, bytes);
  gate.count_down();
  EXPECT_TRUE(becomes_true([&] { return pages.facts().locked == bytes; }));
  EXPECT_TRUE(std::all_of(begin, begin + bytes, [](unsigned char c) { return c == 7; }));
}

TEST_F(PageLockerTest, ACopyEndsAtTheEndOfItsSlab) {
  PageLocker pages = locker();
  const auto memory = pages.allocate(3 * kSlab);
  const auto* const begin = static_cast<std::byte*>(memory.get());
  EXPECT_EQ(pages.wait_until_locked(begin, 100), 100u);
  EXPECT_EQ(pages.wait_until_locked(begin, 3 * kSlab), kSlab);
  EXPECT_EQ(pages.wait_until_locked(begin + kSlab - 10, 100), 10u);
  EXPECT_EQ(pages.wait_until_locked(begin + 3 * kSlab - 10, 10), 10u);
  std::byte elsewhere[10];
  EXPECT_EQ(pages.wait_until_locked(elsewhere, 10), 10u);
  EXPECT_EQ(pages.wait_until_locked(begin + 3 * kSlab, 100), 100u) << "behind the end";
}

// The only thread is busy with the first slab. A copy that needs the last slab does not wait for the first.
TEST_F(PageLockerTest, OnlyTheSlabThatIsNeededIsWaitedFor) {
  std::latch gate(1);
  std::atomic<int> begun = 0;
  PageLocker pages({[&](std::byte*, std::size_t) {
                      if (begun++ == 0) gate.wait();
                    },
                    [](std::byte*) {}},
                   1, std::nullopt, kSlab);
  const auto memory = pages.allocate(3 * kSlab);
  auto* const begin = static_cast<std::byte*>(memory.get());
  ASSERT_TRUE(becomes_true([&] { return begun == 1; }));
  EXPECT_EQ(pages.wait_until_locked(begin + 2 * kSlab, 1), 1u);
  EXPECT_EQ(pages.facts().locked, kSlab);
  gate.count_down();
  const auto behind = pages.allocate(kSlab);  // everything queued earlier has been processed by then
  EXPECT_TRUE(becomes_true([&] { return pages.facts().locked == 4 * kSlab; }));
  EXPECT_EQ(begun, 4) << "the last one of the three was locked once";
}

TEST_F(PageLockerTest, ACopyWaitsUntilItsSlabIsLocked) {
  std::latch gate(1);
  gate_ = &gate;
  PageLocker pages = locker(1);
  const auto memory = pages.allocate(2 * kSlab);
  std::atomic<bool> there = false;
  std::latch started(1);
  std::jthread copy([&] {
    started.count_down();
    pages.wait_until_locked(memory.get(), 1);
    there = true;
  });
  started.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(there);
  gate.count_down();
  EXPECT_TRUE(becomes_true([&] { return there.load(); }));
  copy.join();
  EXPECT_GT(pages.facts().waited, 0);
}

TEST_F(PageLockerTest, ARefusalIsAnErrorForTheCopyThatNeedsTheMemory) {
  most_ = 2;
  PageLocker pages = locker(1);
  const auto memory = pages.allocate(6 * kSlab);
  auto* const begin = static_cast<std::byte*>(memory.get());
  ASSERT_TRUE(becomes_true([&] { return locked() == 2; })) << "the first two, by the thread";
  EXPECT_EQ(pages.wait_until_locked(begin, 1), 1u);
  try {
    pages.wait_until_locked(begin + 5 * kSlab, 1);
    pages.wait_until_locked(begin + 4 * kSlab, 1);
    FAIL() << "two slabs of six can be locked";
  } catch (const OutOfHostMemory& e) {
    // A slab that the thread is about to lock does not count yet.
    EXPECT_NE(e.facts.find("of 12.0 MiB, only "), std::string::npos) << e.facts;
    EXPECT_NE(e.facts.find(" MiB could be locked"), std::string::npos) << e.facts;
  }
  EXPECT_EQ(pages.wait_until_locked(begin, 1), 1u) << "what is locked can be used all the same";
}

TEST_F(PageLockerTest, AfterARefusalNoOtherSlabIsTried) {
  most_ = 0;
  PageLocker pages = locker(1);
  const auto memory = pages.allocate(20 * kSlab);
  EXPECT_THROW(pages.wait_until_locked(memory.get(), 1), OutOfHostMemory);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::lock_guard held(mutex_);
  EXPECT_LE(calls_, 2) << "one by the thread, one by who waited";
}

TEST_F(PageLockerTest, MemoryMayBeFreedBeforeItIsLocked) {
  std::latch gate(1);
  gate_ = &gate;
  PageLocker pages = locker();
  auto memory = pages.allocate(64 * kSlab);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::jthread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.count_down();
  });
  memory.reset();
  EXPECT_TRUE(gate.try_wait()) << "a slab is being locked while its memory goes";
  EXPECT_EQ(locked(), 0u);
  EXPECT_LT(calls_, 64) << "what was not begun is given up";
}

TEST_F(PageLockerTest, MemoryMayOutliveItsLocker) {
  std::shared_ptr<void> memory;
  {
    PageLocker pages = locker();
    memory = pages.allocate(4 * kSlab);
    pages.wait_until_locked(memory.get(), 1);
  }
  EXPECT_GE(locked(), 1u);
  std::memset(memory.get(), 1, 4 * kSlab);
  memory.reset();
  EXPECT_EQ(locked(), 0u);
}

TEST_F(PageLockerTest, AMissingNodeIsNoError) {
  for (const int node : {0, 63, 64, 1000}) {
    PageLocker pages = locker(1, node);
    const auto memory = pages.allocate(kSlab);
    EXPECT_EQ(pages.wait_until_locked(memory.get(), 1), 1u) << node;
    EXPECT_EQ(pages.facts().node, node);
  }
}

TEST_F(PageLockerTest, TooManyBytesAreAnError) {
  PageLocker pages = locker();
  EXPECT_THROW(pages.allocate(std::size_t{1} << 60), Error);
}

}  // namespace
}  // namespace ring
