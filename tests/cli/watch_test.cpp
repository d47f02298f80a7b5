// Output of `ringmaster watch`.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/watch_view.h"
#include "core/check.h"
#include "tests/paths.h"
#include "tests/process.h"
#include "text/utf8.h"

namespace ring {
namespace {

std::size_t characters(std::string_view text) {
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(std::max<std::size_t>(utf8::valid_length(text), 1));
  return n;
}

TEST(Sparkline, GoesFromTheLowestToTheHighest) {
  EXPECT_EQ(sparkline({{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 4}, {6, 5}, {7, 6}, {8, 7}}, 20), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({{1, 3}, {2, NAN}, {3, INFINITY}, {4, 1}}, 20), "█  ▁");
  EXPECT_EQ(sparkline({{1, 5}, {2, 5}}, 20), "▁▁");
  EXPECT_EQ(sparkline({{1, 0}, {2, 2}, {3, 8}, {4, 8}}, 2), "▁█");  // means 1 and 8
  EXPECT_EQ(sparkline({}, 20), "");
  EXPECT_EQ(sparkline({{1, NAN}}, 20), " ");
}

ReportRun a_run() {
  ReportRun run;
  run.summary = {.path = "runs/t", .status = kRunRunning, .step = 400, .steps = 1000, .memory_peak = 2e9, .age = 3.0};
  run.summary.restarts = 1;
  run.summary.processes = 2;
  run.summary.tokens_per_second = 51234;
  for (int i = 1; i <= 400; ++i) {
    run.curves["train/loss"].push_back({1.0 * i, 4 - i / 200.0});
    run.curves["train/step_ms"].push_back({1.0 * i, i == 400 ? 90.0 : 50.0});
  }
  run.curves["train/data_share"] = {{400, 0.1}};
  run.curves["train/exchange_share"] = {{400, 0.2}};
  run.events = {{200, "restart 1, 2.5 s lost so far", true}};
  return run;
}

TEST(Watch, TimeLeftFollowsFromTheMedianStep) {
  EXPECT_DOUBLE_EQ(*seconds_left(a_run()), 600 * 0.05);
  ReportRun run = a_run();
  run.summary.step = 1000;
  EXPECT_FALSE(seconds_left(run));
  EXPECT_FALSE(seconds_left(ReportRun{}));
}

TEST(Watch, ARunIsShownInEightyColumns) {
  const std::vector<std::string> lines = watch_lines(a_run(), 80);
  const auto line = [&](const std::string& name) {
    for (const std::string& l : lines)
      if (l.starts_with(name)) return l;
    return std::string();
  };
  EXPECT_EQ(lines[0], "runs/t: running, last record 3s ago");
  EXPECT_NE(lines[1].find("░ 400/1000, 30s left"), std::string::npos) << lines[1];
  EXPECT_TRUE(line("loss").starts_with("loss        2.0000     █")) << line("loss");
  EXPECT_TRUE(line("loss").ends_with("▁"));
  EXPECT_EQ(line("step"), "step        90.0 ms    data 9.0 ms, other processes 18.0 ms, computing 63.0 ms");
  EXPECT_EQ(line("restarts"), "restarts    1          step 200: restart 1, 2.5 s lost so far");
  EXPECT_EQ(line("validation"), "validation  -");
  for (const std::string& l : lines) EXPECT_LE(characters(l), 80u) << l;
}

// The widest values still leave a space before the next column.
TEST(Watch, LongStepsAreInSecondsAndColumnsDoNotTouch) {
  ReportRun run = a_run();
  run.curves["train/step_ms"].push_back({401, 2366});
  run.curves["train/memory_in_use"] = {{401, 999.9e6}};
  const auto has = [&](const std::string& expected) {
    const std::vector<std::string> lines = watch_lines(run, 80);
    return std::ranges::any_of(lines, [&](const std::string& l) { return l.starts_with(expected); });
  };
  EXPECT_TRUE(has("step        2.37 s     data 237 ms, other processes 473 ms, computing 1.66 s"));
  EXPECT_TRUE(has("memory      999.9 MB   peak 2.0 GB"));
  run.summary.restarts = 12'345'678'901;
  EXPECT_TRUE(has("restarts    1234567890 step 200"));
}

TEST(Watch, LinesStayInTheirColumnsWhateverTheRunIsCalled) {
  ReportRun run = a_run();
  run.summary.path = "\x1b[2J\xff" + std::string(500, 'x') + "\n";
  run.summary.note = "\xe2\x82";
  run.events.back().text = "\x1b]0;title\x07";
  run.curves["train/grad_norm"] = {{1, NAN}, {2, INFINITY}};
  run.summary.step = run.summary.steps = 9'000'000'000'000'000'000;
  for (const std::size_t columns : {0, 1, 20, 39, 40, 80, 200})
    for (const std::string& l : watch_lines(run, columns)) {
      EXPECT_LE(characters(l), columns) << l;
      EXPECT_EQ(l.find('\x1b'), std::string::npos) << l;
      EXPECT_EQ(l.find('\n'), std::string::npos) << l;
    }
  EXPECT_EQ(watch_lines(run, 80).size(), watch_lines(ReportRun{}, 80).size());
}

// Returns the program's output on a terminal of that many columns.
std::string watch_on_a_terminal(const std::string& run, unsigned short columns) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return "";
  const winsize size{.ws_row = 50, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ioctl(master, TIOCSWINSZ, &size);
  const std::string terminal = ptsname(master);
  test::Process watch({test::ring_binary(), "watch", run}, {{"TERM", "xterm"}},
                      [terminal] { dup2(open(terminal.c_str(), O_RDWR | O_NOCTTY), STDOUT_FILENO); });
  std::string all;
  char bytes[4096];
  for (ssize_t n; (n = read(master, bytes, sizeof bytes)) > 0;) all.append(bytes, static_cast<std::size_t>(n));
  close(master);
  EXPECT_EQ(watch.wait().code, 0);
  return all;
}

TEST(Watch, TheLastColumnOfATerminalStaysFree) {
  const std::filesystem::path run = std::filesystem::temp_directory_path() / str("ring_watch_", getpid());
  std::filesystem::create_directories(run);
  std::ofstream(run / "config.yaml") << "train: {steps: 10}\n";
  std::ofstream(run / "metrics.jsonl") << R"({"step":10,"group":"train","time":1,"loss":2})"
                                       << "\n";
  for (const unsigned short columns : {30, 80}) {
    std::istringstream lines(watch_on_a_terminal(run, columns));
    const std::string erase = "\x1b[K";
    int n = 0;
    for (std::string line; std::getline(lines, line); ++n) {
      ASSERT_TRUE(line.starts_with(erase) && line.ends_with("\r")) << line;
      line = line.substr(erase.size(), line.size() - erase.size() - 1);
      EXPECT_EQ(line.find(erase), std::string::npos) << line;
      EXPECT_LT(characters(line), columns) << line;
    }
    EXPECT_GT(n, 5);
  }
  std::filesystem::remove_all(run);
}

}  // namespace
}  // namespace ring
