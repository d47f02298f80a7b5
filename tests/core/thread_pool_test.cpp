#include "core/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"

namespace ring {
namespace {

struct Part {
  std::int64_t begin, end;
  int thread;
};

std::vector<Part> parts_of(ThreadPool& pool, std::int64_t n, std::int64_t grain, std::int64_t align = 1) {
  std::mutex mutex;
  std::vector<Part> parts;
  pool.parallel_for(
      n, grain,
      [&](std::int64_t begin, std::int64_t end, int thread) {
        std::lock_guard lock(mutex);
        parts.push_back({begin, end, thread});
      },
      align);
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  return parts;
}

TEST(ThreadPool, CoversTheRangeOnceForEverySize) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (std::int64_t n : {1, 2, 7, 64, 1000})
      for (std::int64_t align : {1, 8, 64}) {
        std::int64_t next = 0;
        for (const Part& p : parts_of(pool, n, 1, align)) {
          EXPECT_EQ(p.begin, next);
          EXPECT_LT(p.begin, p.end);
          EXPECT_TRUE(p.thread >= 0 && p.thread < threads);
          EXPECT_TRUE(p.end == n || p.end % align == 0) << n << ' ' << align;
          next = p.end;
        }
        EXPECT_EQ(next, n);
      }
  }
}

TEST(ThreadPool, NothingRunsForAnEmptyRange) {
  ThreadPool pool(2);
  EXPECT_TRUE(parts_of(pool, 0, 1).empty());
  EXPECT_TRUE(parts_of(pool, -3, 1).empty());
}

TEST(ThreadPool, SmallRangesAreNotSplitBelowTheGrain) {
  ThreadPool pool(4);
  EXPECT_EQ(parts_of(pool, 99, 100).size(), 1u);
  EXPECT_EQ(parts_of(pool, 250, 100).size(), 2u);
  EXPECT_EQ(parts_of(pool, 4000, 100).size(), 4u);
  EXPECT_EQ(parts_of(pool, 8, 0).size(), 4u);  // a grain of 0 counts as 1
}

TEST(ThreadPool, PartsAreBalancedAndTheSameEveryTime) {
  ThreadPool pool(3);
  const auto first = parts_of(pool, 1001, 1);
  ASSERT_EQ(first.size(), 3u);
  for (const Part& p : first) EXPECT_NEAR(static_cast<double>(p.end - p.begin), 1001 / 3.0, 1.0);
  const auto again = parts_of(pool, 1001, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first[i].begin, again[i].begin);
    EXPECT_EQ(first[i].thread, again[i].thread);
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolStaysUsable) {
  ThreadPool pool(3);
  for (int thrower : {0, 1, 2}) try {
      pool.parallel_for(3, 1, [&](std::int64_t, std::int64_t, int thread) {
        if (thread == thrower) fail("part ", thread, " failed");
      });
      ADD_FAILURE() << "no exception from part " << thrower;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), str("part ", thrower, " failed"));
    }
  EXPECT_EQ(parts_of(pool, 3, 1).size(), 3u);
}

TEST(ThreadPool, ACallFromInsideRunsSerially) {
  ThreadPool pool(2);
  std::atomic<int> inner_parts{0};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) {
    pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end, int) {
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 100);
      ++inner_parts;
    });
  });
  EXPECT_EQ(inner_parts, 2);
}

TEST(ThreadPool, WritesOfAllPartsAreVisibleAfterwards) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(10000);
  for (int round = 1; round <= 200; ++round) {
    pool.parallel_for(10000, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), std::int64_t{49995000} * round);
  }
}

TEST(ThreadPool, ManyPoolsStartAndStop) {
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 50; ++i) {
    ThreadPool idle(3);  // a pool that never ran must stop, too
    ThreadPool pool(3);
    pool.parallel_for(3, 1, [&](std::int64_t b, std::int64_t e, int) { sum += e - b; });
  }
  EXPECT_EQ(sum, 150);
}

// The worker moves itself to the caller's core, as a scheduler may do.
TEST(ThreadPool, AWorkerLeavesTheCallersCoreAndKeepsItsAffinity) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "needs two cores";
  ThreadPool pool(2);
  int core[2] = {-1, -1};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
    if (thread == 0) core[0] = sched_getcpu();
  });
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core[0], &only);
    if (thread == 1) sched_setaffinity(0, sizeof only, &only), sched_setaffinity(0, sizeof allowed, &allowed);
  });
  cpu_set_t kept;
  CPU_ZERO(&kept);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
      core[thread] = sched_getcpu();
      if (thread == 1) sched_getaffinity(0, sizeof kept, &kept);
      const auto begun = std::chrono::steady_clock::now();  // long enough for the worker to take its part
      while (std::chrono::steady_clock::now() - begun < std::chrono::microseconds(200)) continue;
    });
  while (core[0] == core[1] && std::chrono::steady_clock::now() < end);
  EXPECT_NE(core[0], core[1]);
  EXPECT_TRUE(CPU_EQUAL(&kept, &allowed));
}

std::atomic<bool> held{false}, holding{false};

// Blocks the thread that gets the signal, like a busy machine.
void block_thread(int) {
  holding = true;
  const timespec moment{0, 1'000'000};
  while (held) nanosleep(&moment, nullptr);
  holding = false;
}

// Returns the worker's thread, once the worker has run a part itself.
pthread_t worker_of(ThreadPool& pool) {
  pthread_t worker = pthread_self();
  while (pthread_equal(worker, pthread_self()))
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
      if (thread == 1) worker = pthread_self();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  return worker;
}

TEST(ThreadPool, TheCallerDoesNotWaitForAWorkerThatGetsNoCore) {
  ThreadPool pool(2);
  const pthread_t worker = worker_of(pool);
  struct sigaction action {
  }, before{};
  action.sa_handler = block_thread;
  ASSERT_EQ(sigaction(SIGUSR2, &action, &before), 0);
  held = true;
  ASSERT_EQ(pthread_kill(worker, SIGUSR2), 0);
  for (int i = 0; i < 5000 && !holding; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const bool was_held = holding;
  std::thread release([] {  // if the caller does wait for the worker, the test must end, too
    for (int i = 0; i < 5000 && held; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    held = false;
  });
  std::vector<std::thread::id> by(2);
  for (int round = 0; round < 100; ++round)
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
      by[static_cast<std::size_t>(thread)] = std::this_thread::get_id();
    });
  const bool still_held = held;
  held = false;
  release.join();
  EXPECT_EQ(parts_of(pool, 2, 1).size(), 2u) << "it goes on";
  while (holding) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  sigaction(SIGUSR2, &before, nullptr);
  if (!was_held) GTEST_SKIP() << "the signal did not come: a sanitizer keeps it back";
  EXPECT_TRUE(still_held);
  EXPECT_EQ(by, std::vector<std::thread::id>(2, std::this_thread::get_id()));
}

TEST(ThreadPool, NeedsAThread) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-2), Error);
}

class ThreadsVariable : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* text = std::getenv("RINGMASTER_THREADS")) before_ = text;
  }
  void TearDown() override {
    before_ ? setenv("RINGMASTER_THREADS", before_->c_str(), 1) : unsetenv("RINGMASTER_THREADS");
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(ThreadsVariable, ChoosesTheDefault) {
  setenv("RINGMASTER_THREADS", "3", 1);
  EXPECT_EQ(default_threads(), 3);
  unsetenv("RINGMASTER_THREADS");
  EXPECT_GE(default_threads(), 1);
}

TEST_F(ThreadsVariable, RefusesInvalidThreadCounts) {
  for (const char* bad : {"", "0", "-1", "two", "2x", "4097", "99999999999999999999"}) {
    setenv("RINGMASTER_THREADS", bad, 1);
    try {
      default_threads();
      ADD_FAILURE() << "accepted '" << bad << "'";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(str("RINGMASTER_THREADS is '", bad, "'")), std::string::npos) << e.what();
    }
  }
}

// A huge default stack makes the system refuse threads, as it does at a limit on processes or memory.
TEST(ThreadPool, SaysWhenTheSystemHasNoMoreThreads) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  pthread_attr_init(&huge);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  std::string message;
  try {
    ThreadPool pool(3);
  } catch (const Error& e) {
    message = e.what();
  }
  pthread_setattr_default_np(&usual);
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&huge);
  EXPECT_TRUE(message.starts_with("cannot start 3 threads: after 1")) << message;
}

}  // namespace
}  // namespace ring
