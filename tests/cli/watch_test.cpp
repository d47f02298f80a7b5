// What `ringmaster watch` draws.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/watch_view.h"
#include "data/utf8.h"

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

TEST(Watch, TimeLeftIsThatOfTheMedianStep) {
  EXPECT_DOUBLE_EQ(*seconds_left(a_run()), 600 * 0.05);
  ReportRun run = a_run();
  run.summary.step = 1000;
  EXPECT_FALSE(seconds_left(run));
  EXPECT_FALSE(seconds_left(ReportRun{}));
}

TEST(Watch, ShowsARunInEightyColumns) {
  const std::vector<std::string> lines = watch_lines(a_run(), 80);
  const auto line = [&](const std::string& name) {
    for (const std::string& l : lines)
      if (l.starts_with(name)) return l;
    return std::string();
  };
  EXPECT_EQ(lines[0], "runs/t: running, last record 3s ago");
  EXPECT_NE(lines[1].find("░ 400/1000, 30s left"), std::string::npos) << lines[1];
  EXPECT_TRUE(line("loss").starts_with("loss        2.0000    █")) << line("loss");
  EXPECT_TRUE(line("loss").ends_with("▁"));
  EXPECT_EQ(line("step"), "step        90 ms     data 9, other processes 18, computing 63");
  EXPECT_EQ(line("restarts"), "restarts    1         step 200: restart 1, 2.5 s lost so far");
  EXPECT_EQ(line("validation"), "validation  -");
  for (const std::string& l : lines) EXPECT_LE(characters(l), 80u) << l;
}

TEST(Watch, StaysInItsColumnsWhateverARunIsCalled) {
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

}  // namespace
}  // namespace ring
