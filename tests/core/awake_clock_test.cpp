// Tests that the clock of time-outs stands still while this process does not run, and at no other time.

#include "core/awake_clock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

namespace ring {
namespace {

using namespace std::chrono_literals;
using Time = GapFilter::Time;
using Seconds = std::chrono::duration<double>;

// Simulates a process with a thread that reads the clock every kTick while the process runs.
class FakeProcess {
 public:
  FakeProcess() { filter_.begin(now_); }
  void run(Time t) {
    filter_.without_gaps(now_);
    for (const Time end = now_ + t; now_ < end;) filter_.without_gaps(now_ += GapFilter::kTick);
  }
  void stop(Time t) { now_ += t; }
  void jump(Time t) { now_ += t; }  // jumps like the clock of a virtual machine after a pause
  Time time() { return filter_.without_gaps(now_); }
  Time last_gap() const { return filter_.last_gap(); }

 private:
  Time now_ = 1h;
  GapFilter filter_;
};

TEST(AwakeClock, TimePassesWhileTheProcessRuns) {
  FakeProcess p;
  const Time begin = p.time();
  p.run(1h);
  EXPECT_EQ(p.time() - begin, 1h);
  EXPECT_EQ(p.last_gap(), 0s) << "no gap";
}

TEST(AwakeClock, GapsDoNotCount) {
  FakeProcess p;
  const Time begin = p.time();
  p.run(2s);
  p.stop(15s);
  p.run(1s);
  p.jump(10h);
  p.run(1s);
  EXPECT_EQ(p.time() - begin, 4s);
  EXPECT_EQ(p.time() - p.last_gap(), 1s);
}

// Any thread may be the first to read the clock after a gap.
TEST(AwakeClock, TheFirstReadingDoesNotContainTheGap) {
  FakeProcess p;
  p.run(1s);
  const Time before = p.time();
  p.stop(1h);
  EXPECT_EQ(p.time(), before);
}

TEST(AwakeClock, AShortDelayCounts) {
  FakeProcess p;
  const Time begin = p.time();
  p.stop(GapFilter::kGap);
  EXPECT_EQ(p.time() - begin, GapFilter::kGap);
}

TEST(AwakeClock, AnOlderReadingChangesNothing) {
  GapFilter f;
  f.begin(10s);
  EXPECT_EQ(f.without_gaps(10s + 200ms), 10s + 200ms);
  EXPECT_EQ(f.without_gaps(10s + 100ms), 10s + 100ms);
  EXPECT_EQ(f.without_gaps(10s + 300ms), 10s + 300ms);
}

// If several threads find a gap at the same time, it is subtracted once, and no thread returns before it is subtracted.
TEST(AwakeClock, ThreadsSubtractAGapOnce) {
  for (int round = 0; round < 50; ++round) {
    GapFilter f;
    f.begin(1s);
    std::atomic<bool> go{false};
    std::vector<Time> seen(4);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < seen.size(); ++i)
      threads.emplace_back([&, i] {
        go.wait(false);
        seen[i] = f.without_gaps(1h + i * 1ms);
      });
    go = true;
    go.notify_all();
    for (std::thread& t : threads) t.join();
    for (const Time t : seen) {
      EXPECT_GE(t, 1s - 3ms);
      EXPECT_LE(t, 1s + 3ms);
    }
  }
}

// Runs `body` in a child process and returns its result. If the child stops itself, resumes it after `stop`. Returns -1
// if the child fails.
double in_child(Time stop, double (*body)()) {
  AwakeClock::now();  // starts the clock's thread, which fork() does not copy
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const double result = body();
    _exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
  }
  close(ends[1]);  // so that a child that dies ends the read below
  int status = 0;
  if (stop > 0s && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status)) {
    std::this_thread::sleep_for(stop);
    kill(child, SIGCONT);
  }
  double result = -1;
  const bool received = read(ends[0], &result, sizeof result) == sizeof result;
  waitpid(child, &status, 0);
  close(ends[0]);
  return received ? result : -1;
}

TEST(AwakeClock, StoppedTimeDoesNotCount) {
  const double lost = in_child(900ms, [] {
    const auto begin = AwakeClock::now();
    const auto real = std::chrono::steady_clock::now();
    raise(SIGSTOP);
    const Seconds awake = AwakeClock::now() - begin, all = std::chrono::steady_clock::now() - real;
    return (all - awake).count();
  });
  EXPECT_GE(lost, 0.9);
}

// A busy machine may not run the clock's thread during one sleep, but not during each.
TEST(AwakeClock, SleepingTimeCounts) {
  const auto awake_time = [] {
    return in_child(0s, [] {
      const auto begin = AwakeClock::now();
      std::this_thread::sleep_for(3 * GapFilter::kGap / 2);
      return Seconds(AwakeClock::now() - begin).count();
    });
  };
  double awake = 0;
  for (int attempt = 0; attempt < 10 && awake < 0.25; ++attempt) awake = awake_time();
  EXPECT_GE(awake, 0.25) << "the clock's thread reads it meanwhile, also in a child";
}

}  // namespace
}  // namespace ring
