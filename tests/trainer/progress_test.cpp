#include "trainer/progress.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <sstream>
#include <thread>

#include "core/log.h"

namespace ring {
namespace {

ProgressState state(std::int64_t step) {
  ProgressState s;
  s.step = step;
  s.total_steps = 2000;
  s.loss = 2.43128;
  s.val_loss = 2.5;
  s.tokens_per_second = 24576;
  s.step_ms = 31.25;
  s.eta_seconds = 62;
  s.lr = 1e-3;
  return s;
}

struct Screen {
  std::ostringstream out;
  int columns = 120;
  double now = 0;
  ProgressOptions options(bool terminal) {
    ProgressOptions o;
    o.out = &out;
    o.terminal = terminal;
    o.columns = [this] { return columns; };
    o.now = [this] { return now; };
    return o;
  }
  // Returns the screen of a terminal: a carriage return goes to the start of the line, ESC[K erases the rest of the
  // line.
  std::vector<std::string> visible_lines() const {
    std::vector<std::string> lines(1);
    std::size_t column = 0;
    const std::string text = out.str();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        column = 0;
      } else if (text[i] == '\n') {
        lines.emplace_back(), column = 0;
      } else if (text.compare(i, 3, "\x1b[K") == 0) {
        lines.back().resize(std::min(column, lines.back().size())), i += 2;
      } else {
        lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
        lines.back()[column++] = text[i];
      }
    }
    return lines;
  }
};

TEST(Progress, LiveLineShowsEverythingIfThereIsRoom) {
  const std::string text = "500/2000  loss 2.4313  val 2.5000  24.6k tok/s  31.2 ms/step  ETA 1m02s";
  EXPECT_EQ(live_line(state(500), 200), "[==========>                             ] " + text);
  EXPECT_EQ(live_line(state(500), static_cast<int>(text.size())), text);
}

TEST(Progress, LiveLineFitsAnyWidth) {
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LE(live_line(state(1999), columns).size(), static_cast<std::size_t>(columns));
  }
  EXPECT_EQ(live_line(state(500), 22), "500/2000  loss 2.4313");
  EXPECT_EQ(live_line(state(500), 34), "500/2000  loss 2.4313  ETA 1m02s");
  EXPECT_EQ(live_line(state(500), 0), "5");
}

TEST(Progress, BarIsFullOnlyAtTheEnd) {
  EXPECT_EQ(live_line(state(1999), 200).substr(0, 42), "[" + std::string(39, '=') + ">]");
  EXPECT_EQ(live_line(state(2000), 200).substr(0, 42), "[" + std::string(40, '=') + "]");
  EXPECT_EQ(live_line(state(3000), 200).substr(0, 42), "[" + std::string(40, '=') + "]");
  EXPECT_EQ(live_line(state(0), 200).substr(0, 42), "[>" + std::string(39, ' ') + "]");
}

TEST(Progress, UnknownValuesAreLeftOut) {
  ProgressState s;
  s.step = 3;
  s.loss = 1;
  EXPECT_EQ(live_line(s, 100), "step 3  loss 1.0000");
  EXPECT_EQ(plain_line(s), "step 3  loss 1.0000");
  s.loss = kUnknown;
  EXPECT_EQ(plain_line(s), "step 3  loss nan");
}

TEST(Progress, PlainLinesAreWrittenEveryInterval) {
  Screen screen;
  ProgressOptions options = screen.options(false);
  options.log_interval = 10;
  {
    Progress progress(options);
    for (int step = 1; step <= 25; ++step) progress.update(state(step));
    progress.print_line("hello");
  }
  const auto lines = screen.visible_lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "step 10/2000  loss 2.4313  val 2.5000  24.6k tok/s  31.2 ms/step  ETA 1m02s  lr 1.00e-03");
  EXPECT_TRUE(lines[1].starts_with("step 20/2000"));
  EXPECT_EQ(lines[2], "hello");
  EXPECT_EQ(screen.out.str().find('\r'), std::string::npos);
  EXPECT_EQ(screen.out.str().find('\x1b'), std::string::npos);
}

TEST(Progress, TerminalIsRedrawnAtMostTenTimesASecond) {
  Screen screen;
  Progress progress(screen.options(true));
  for (int step = 1; step <= 1000; ++step) {
    screen.now = step * 0.001;
    progress.update(state(step));
  }
  const std::string text = screen.out.str();
  const auto drawings = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(drawings, 9);
  EXPECT_LE(drawings, 11);
  EXPECT_EQ(screen.visible_lines().size(), 1u);
}

TEST(Progress, LinesAndLogLinesClearTheLiveLine) {
  Screen screen;
  {
    Progress progress(screen.options(true));
    progress.update(state(1));
    progress.print_line("evaluated");
    screen.now = 1;
    progress.update(state(2));
    EXPECT_TRUE(screen.visible_lines().back().find("2/2000") != std::string::npos);
    log::warn("(a warning of this test)");
    EXPECT_EQ(screen.visible_lines().back(), "");
    screen.now = 2;
    progress.update(state(3));
  }
  EXPECT_EQ(screen.visible_lines(), (std::vector<std::string>{"evaluated", ""}));
  const std::string before = screen.out.str();
  log::warn("(another warning of this test)");  // the log no longer calls the destroyed Progress
  EXPECT_EQ(screen.out.str(), before);
}

TEST(Progress, ASummaryIsWrittenAtTheEnd) {
  for (const bool terminal : {false, true}) {
    Screen screen;
    Progress progress(screen.options(terminal));
    progress.update(state(1501));
    progress.finish(state(2000), {.total = 3725});
    const auto lines = screen.visible_lines();
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], "trained 500 steps in 1h02m (2000/2000), loss 2.4313, validation loss 2.5000");
  }
}

// The parts add up to the total.
TEST(TimeSpent, NamesTimeOutsideSteps) {
  const TimeSpent time{.total = 912, .evaluations = 240, .saves = 1.2, .not_running = 3.8};
  EXPECT_EQ(time.text(), "15m12s: 11m07s of steps, 4m00s of evaluations, 1s of saves, 4s stopped or without a CPU");
  EXPECT_EQ((TimeSpent{.total = 100, .evaluations = 30}).text(), "1m40s: 1m10s of steps, 30s of evaluations");
  EXPECT_EQ((TimeSpent{.total = 100, .evaluations = 1, .saves = 0.9}).text(), "1m40s");
}

// A user also waits while the process is stopped, which the process's own clock leaves out (core/clock.h).
TEST(TimeAccount, CountsTimeWhileTheProcessIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    const TimeAccount account;
    raise(SIGSTOP);
    const TimeSpent spent = account.spent();
    const bool adds_up = std::abs(spent.steps() + spent.not_running - spent.total) < 1e-9;
    _exit(adds_up && spent.total >= 0.7 && spent.not_running > 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TimeAccount, AddsUpTimers) {
  TimeAccount account;
  for (int i = 0; i < 2; ++i) {
    const TimeAccount::Timer timer = account.evaluating();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  { const TimeAccount::Timer timer = account.saving(); }
  const TimeSpent spent = account.spent();
  EXPECT_GE(spent.evaluations, 0.04);
  EXPECT_LT(spent.saves, spent.evaluations);
  EXPECT_GE(spent.total, spent.evaluations);
}

TEST(Progress, DurationsAreFormatted) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(3725), "1h02m");
  EXPECT_EQ(format_duration(4 * 86400 + 5 * 3600), "4d05h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(kUnknown), "?");
  EXPECT_EQ(format_duration(1e300), "?");
}

TEST(Progress, StepTimesAreFormatted) {
  EXPECT_EQ(format_step_time(0.04), "0.0 ms");
  EXPECT_EQ(format_step_time(31.25), "31.2 ms");
  EXPECT_EQ(format_step_time(99.96), "100 ms");
  EXPECT_EQ(format_step_time(999.4), "999 ms");
  EXPECT_EQ(format_step_time(999.6), "1.00 s");
  EXPECT_EQ(format_step_time(3781), "3.78 s");
  EXPECT_EQ(format_step_time(99'960), "100 s");
  EXPECT_EQ(format_step_time(kUnknown), "?");
  ProgressState s = state(7);
  s.step_ms = 2366;
  EXPECT_NE(plain_line(s).find("  2.37 s/step  "), std::string::npos) << plain_line(s);
}

TEST(Progress, CountsAreFormatted) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(123456), "123k");
  EXPECT_EQ(format_count(1.234e6), "1.23M");
  EXPECT_EQ(format_count(9.999e6), "10.0M");
  EXPECT_EQ(format_count(kUnknown), "?");
}

}  // namespace
}  // namespace ring
