// The rank that is named when ranks hang, also with real operations over Gloo in which one rank does something
// different.

#include "launcher/verdict.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <ostream>
#include <thread>

#include "comm/gloo/gloo.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

using Ranks = std::vector<RankState>;

GroupState group(const std::string& name, std::int64_t done, const std::string& waits_in = "", int first = 0,
                 int size = 3) {
  GroupState g{name, first, size, done, done, done};
  if (waits_in.empty()) return g;
  g.queued = g.started = done + 1;
  g.waits_in = waits_in;
  g.site = "parallel/x.cpp:88";
  return g;
}

RankState rank(int r, std::vector<GroupState> groups, double silent = 12) {
  return {.rank = r,
          .pid = 100 + r,
          .host = "h",
          .step = 119,
          .phase = "forward",
          .silent = silent,
          .last = "#411 of dp",
          .groups = std::move(groups)};
}

TEST(Verdict, NamesTheRankThatTheOthersWaitFor) {
  const std::string sum = "all_reduce sum of f32[1000]";
  EXPECT_EQ(
      verdict({rank(0, {group("dp", 411, sum)}), rank(1, {group("dp", 411)}), rank(2, {group("dp", 411, sum)})}, 3),
      "rank 1 (pid 101) hangs: ranks 0 and 2 wait in #412 of dp, all_reduce sum of f32[1000] at "
      "parallel/x.cpp:88; rank 1 is in phase forward after step 119 and #411 of dp, for 12 s");
}

TEST(Verdict, FollowsTheChainOfWaitingRanks) {
  const Ranks ranks = {rank(0, {group("tp", 5, "a", 0, 2), group("dp", 9)}),
                       rank(1, {group("tp", 4, "", 0, 2), group("dp", 9, "b", 1, 2)}),
                       rank(2, {group("tp", 5, "", 2, 2), group("dp", 9, "", 1, 2)})};
  EXPECT_EQ(verdict(ranks, 3).substr(0, 22), "rank 2 (pid 102) hangs") << verdict(ranks, 3);
}

TEST(Verdict, AStoppedRankIsTheCause) {
  Ranks ranks = {rank(0, {group("dp", 4, "a")}), rank(1, {group("dp", 4, "a")}), rank(2, {group("dp", 4, "a")})};
  ranks[2].stopped = true;
  EXPECT_NE(verdict(ranks, 3).find("rank 2 (pid 102) is stopped"), std::string::npos) << verdict(ranks, 3);
}

TEST(Verdict, SaysIfNoRankLags) {
  const std::string text = verdict({rank(0, {group("dp", 4, "a", 0, 2)}), rank(1, {group("dp", 4, "a", 0, 2)})}, 2);
  EXPECT_EQ(text.find("no rank lags behind"), 0u) << text;
  EXPECT_NE(text.find("ranks 0 and 1 wait in #5 of dp, a at "), std::string::npos) << text;
}

TEST(Verdict, NamesRanksThatWereNotHeardOf) {
  const std::string text = verdict({rank(0, {group("dp", 4, "a", 0, 4)}), rank(1, {group("dp", 4, "a", 0, 4)})}, 4);
  EXPECT_NE(text.find("came from ranks 2 and 3"), std::string::npos) << text;
}

TEST(Verdict, SaysIfRanksWaitForEachOther) {
  const std::string text =
      verdict({rank(0, {group("dp", 4, "a"), group("tp", 7)}), rank(1, {group("dp", 4), group("tp", 7, "b")})}, 2);
  EXPECT_EQ(text.find("ranks wait for each other"), 0u) << text;
  EXPECT_NE(text.find("rank 0 waits in #5 of dp"), std::string::npos) << text;
}

TEST(Verdict, WritingACheckpointDoesNotCountAsWaiting) {
  const Ranks ranks = {rank(0, {group("dp", 4, "a")}),
                       rank(1, {group("dp", 4), group(kBackgroundGroup, 2, "all_gather")})};
  EXPECT_EQ(verdict(ranks, 2).find("rank 1 (pid 101) hangs"), 0u) << verdict(ranks, 2);
}

// The writers of the other ranks wait for rank 1's disk, although other ranks are silent for longer.
TEST(Verdict, NamesTheRankWhoseDiskHangs) {
  Ranks ranks = {rank(0, {group("dp", 4), group(kBackgroundGroup, 2, "all_gather")}, 13),
                 rank(1, {group("dp", 4), group(kBackgroundGroup, 2)}, 12),
                 rank(2, {group("dp", 4), group(kBackgroundGroup, 2, "all_gather")}, 14)};
  for (RankState& r : ranks) r.writes = true, r.phase = "snapshot, writing: sync";
  const std::string text = verdict(ranks, 3);
  EXPECT_EQ(text.find("rank 1 (pid 101) hangs"), 0u) << text;
  EXPECT_NE(text.find("in phase snapshot, writing: sync"), std::string::npos) << text;
  ranks[1].writes = false;  // its writer has ended
  EXPECT_EQ(verdict(ranks, 3).find("rank 2 (pid 102) hangs"), 0u) << verdict(ranks, 3);
}

// Faults of one rank at some operation.
enum class Fault { skips, swaps, other_shape, never_comes };

void PrintTo(Fault fault, std::ostream* out) {
  *out << std::array{"skips", "swaps", "other_shape", "never_comes"}.at(static_cast<std::size_t>(fault));
}

class DistVerdict : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, DistVerdict,
                         testing::Values(Fault::skips, Fault::swaps, Fault::other_shape, Fault::never_comes));

constexpr int kRanks = 3, kCalls = 8;

void run_operation(Communicator& c, int number, std::int64_t n) {
  const Stream stream = Stream::cpu(1);
  const Tensor t = Tensor::zeros({n}, DType::f32, stream);
  if (number % 2)
    c.all_reduce(t, Reduce::sum).synchronize();
  else
    c.broadcast(t, 0).synchronize();
}

// Calls kCalls operations, which differ in order and shape, with a fault at call `at`.
void run_operations(Communicator& c, Fault fault, int at, const std::atomic<int>& read) {
  for (int i = 0; i < kCalls; ++i) {
    while (i == at && fault == Fault::never_comes && read < kRanks) std::this_thread::yield();
    if (i == at && fault == Fault::skips) continue;
    const bool swapped = fault == Fault::swaps && (i == at || i == at + 1);
    const int which = swapped ? 2 * at + 1 - i : i;
    run_operation(c, which, 20'000 + which + (fault == Fault::other_shape && i == at ? 500'000 : 0));
  }
}

Ranks states_of_hang(Fault fault, int culprit, int at) {
  std::vector<WorkerStatus> pages(kRanks);
  CommOptions options;
  options.verify = false;
  options.timeout = std::chrono::seconds(60);
  Ranks states(kRanks);
  std::atomic<int> read{0};
  test::run_ranks(
      kRanks,
      [&](Communicator& c) {
        const auto r = static_cast<std::size_t>(c.rank());
        c.record(FlightLog(pages[r].flights, "dp", 0, kRanks));
        std::thread reader([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));  // ranks of a busy machine hang by then
          states[r] = state_of(pages[r], c.rank());
          for (++read; read < kRanks;) std::this_thread::yield();
          c.abort("it was seen");
        });
        try {
          run_operations(c, c.rank() == culprit ? fault : Fault{9}, at, read);
        } catch (const Error&) {
        }
        reader.join();
      },
      options);
  return states;
}

TEST_P(DistVerdict, NamesTheRankAndTheCall) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (int at = 2; at < 5; ++at) {
    const int culprit = at % kRanks;
    const std::string text = verdict(states_of_hang(GetParam(), culprit, at), kRanks);
    const std::string who = "rank " + std::to_string(culprit), number = "#" + std::to_string(at + 1) + " of dp";
    EXPECT_NE(text.find(GetParam() == Fault::never_comes ? who + " (pid" : who + " runs "), std::string::npos) << text;
    EXPECT_TRUE(GetParam() == Fault::never_comes || text.find(number) != std::string::npos) << text;
    EXPECT_NE(text.find("launcher/verdict_test.cpp:"), std::string::npos) << text;
  }
}

TEST(Processes, AnEndedProcessIsExitingUntilItsParentWaitsForIt) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_FALSE(is_exiting(child));
  EXPECT_FALSE(is_exiting(getpid()));
  kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(is_exiting(child));
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(is_exiting(child)) << "no such process";
}

}  // namespace
}  // namespace ring
