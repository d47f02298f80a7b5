// `bench context`: arithmetic of time spans, timelines of messages that end early or late, their pictures, and the
// command with several processes.
#include "inspect/context_timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "bench/context.h"
#include "comm/gloo/gloo.h"
#include "core/files.h"
#include "inspect/timeline_picture.h"
#include "tests/comm/mesh_ranks.h"
#include "tests/inspect/svg_check.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

using Spans = std::vector<TimeSpan>;

TEST(TimeSpans, UniteAsComputedByHand) {
  EXPECT_EQ(merge_spans({}), Spans{});
  EXPECT_EQ(merge_spans({{3, 4}, {1, 2}}), (Spans{{1, 2}, {3, 4}}));
  EXPECT_EQ(merge_spans({{1, 3}, {2, 5}, {5, 6}}), (Spans{{1, 6}}));  // overlapping and adjacent spans
  EXPECT_EQ(merge_spans({{1, 9}, {2, 3}, {4, 5}}), (Spans{{1, 9}}));  // spans within a span
  EXPECT_EQ(merge_spans({{2, 2}, {4, 3}}), Spans{});                  // empty and reversed spans
  EXPECT_EQ(length_of({{1, 2}, {4, 7}}), 4);
}

TEST(TimeSpans, SubtractAsComputedByHand) {
  EXPECT_EQ(subtract_spans({}, {{0, 1}}), Spans{});
  EXPECT_EQ(subtract_spans({{1, 4}}, {}), (Spans{{1, 4}}));
  EXPECT_EQ(subtract_spans({{1, 4}}, {{0, 9}}), Spans{});
  EXPECT_EQ(subtract_spans({{1, 4}}, {{1, 4}}), Spans{});
  EXPECT_EQ(subtract_spans({{1, 8}}, {{2, 3}, {5, 6}}), (Spans{{1, 2}, {3, 5}, {6, 8}}));
  EXPECT_EQ(subtract_spans({{1, 3}, {5, 8}}, {{2, 6}}), (Spans{{1, 2}, {6, 8}}));          // one hole in two spans
  EXPECT_EQ(subtract_spans({{0, 4}, {2, 6}, {8, 9}}, {{5, 7}}), (Spans{{0, 5}, {8, 9}}));  // overlapping spans
}

// The reference counts seconds one by one.
TEST(TimeSpans, AgreeWithCountedSeconds) {
  unsigned state = 1;
  const auto draw = [&](unsigned below) { return (state = state * 1664525u + 1013904223u) >> 16 & 0xffffu % below; };
  const auto spans = [&] {
    Spans out(draw(7));
    for (TimeSpan& s : out) s.begin = draw(64), s.end = s.begin + draw(16);
    return out;
  };
  const auto covered = [](const Spans& all, int second) {
    return std::any_of(all.begin(), all.end(), [&](const TimeSpan& s) { return s.begin <= second && second < s.end; });
  };
  for (int i = 0; i < 500; ++i) {
    const Spans a = spans(), b = spans();
    double either = 0, only = 0;
    for (int second = 0; second < 96; ++second) {
      either += covered(a, second);
      only += covered(a, second) && !covered(b, second);
      ASSERT_EQ(covered(subtract_spans(a, b), second), covered(a, second) && !covered(b, second));
    }
    ASSERT_EQ(length_of(merge_spans(a)), either);
    ASSERT_EQ(length_of(subtract_spans(a, b)), only);
  }
}

class Switch final : public EventImpl {
 public:
  bool done() const override { return on; }
  void synchronize() const override { on = true; }
  mutable bool on = false;
};

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

TEST(ContextTimeline, OnACpuMessagesEndWhenTheyAreFoundComplete) {
  const ExecContext ctx{Stream::cpu(1)};
  TimelineRecorder recorder;
  recorder.start_recording(ctx);
  const auto first = std::make_shared<Switch>(), second = std::make_shared<Switch>();
  const auto send = [&](const std::shared_ptr<Switch>& event) {
    return recorder.message(TimelineLane::keys, "exchange", "1 MB to rank 1", {},
                            [&] { return Work(Event(event), {}); });
  };
  const auto compute = [&](const std::function<void()>& run) {
    recorder.call({"attention", "reference", {.shape = "f32[1]"}}, ctx, run);
  };
  Work work = send(first);
  compute([&] {
    pause();
    first->on = true;
    recorder.call({"store", "inner", {}}, ctx, [] {});  // part of the outer call
  });
  pause();  // no message is in transit
  Work last = send(second);
  pause();  // the message is waited for
  compute(pause);
  const ContextTimeline t = recorder.finish_recording();
  EXPECT_TRUE(second->on);
  ASSERT_EQ(t.bars.size(), 4u);
  const TimelineBar &sent = t.bars[0], &kernel = t.bars[1], &open = t.bars[2], &after = t.bars[3];
  EXPECT_EQ(kernel.name, "attention");
  EXPECT_EQ(kernel.detail, "reference f32[1]");
  EXPECT_EQ(kernel.lane, TimelineLane::computation);
  EXPECT_EQ(sent.lane, TimelineLane::keys);
  EXPECT_LE(sent.time.begin, kernel.time.begin);
  EXPECT_GE(sent.time.end, kernel.time.end);
  EXPECT_LT(sent.time.end, open.time.begin - 0.002);
  EXPECT_GE(open.time.end, after.time.end);
  EXPECT_LE(open.time.end, t.seconds);
  const double waited = length_of(t.waiting());
  EXPECT_GE(waited, after.time.begin - open.time.begin);
  EXPECT_LE(waited, t.seconds - (kernel.time.end - kernel.time.begin) - (after.time.end - after.time.begin));
}

TimelineBar bar(TimelineLane lane, const char* name, double begin, double end) {
  return {lane, name, "of <a> & b", {begin, end}};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(TimelinePicture, ShowsEveryBar) {
  using enum TimelineLane;
  const ContextTimeline t{{bar(computation, "attention", 0, 1e-3), bar(computation, "attention_backward", 2e-3, 3e-3),
                           bar(computation, "axpby", 3e-3, 3.1e-3), bar(keys, "exchange", 0, 1.5e-3),
                           bar(keys, "exchange", 0.5e-3, 0.75e-3), bar(gradients, "exchange", 2.5e-3, 3.5e-3)},
                          4e-3};
  const std::string svg = timeline_picture(t, "ring & <more>", {"a line", "4 < 5"});
  expect_well_formed(svg);
  for (const char* text : {"ring &amp; &lt;more&gt;", "4 &lt; 5", "keys under way", "gradients under way",
                           ">4.0</text>", "attention_backward, of &lt;a&gt; &amp; b: from 2.000 ms, 1.000 ms long"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(svg.find("messages under way</text>"), std::string::npos);  // there are no such messages
  EXPECT_EQ(count(svg, "ms long</title>"), 6u + 2u);                    // waits: 1 to 1.5 and 3.1 to 3.5
  EXPECT_EQ(count(svg, "no kernel runs: from 1.000 ms, 0.500 ms long"), 1u);
  EXPECT_EQ(count(svg, "no kernel runs: from 3.100 ms, 0.400 ms long"), 1u);
  const std::string empty = timeline_picture({}, "nothing", {});
  expect_well_formed(empty);
  EXPECT_EQ(empty.find("nan"), std::string::npos);
}

TEST(ContextTiming, SharesAreComputedAndBounded) {
  ContextTiming t;
  EXPECT_EQ(t.hidden_share(), 1);
  EXPECT_EQ(t.slowdown(), 0);
  t.computing_seconds = 4, t.both_seconds = 5, t.transfer_seconds = 2, t.waited_seconds = 0.5;
  EXPECT_EQ(t.hidden_share(), 0.75);
  EXPECT_EQ(t.slowdown(), 0.25);
  t.waited_seconds = 3;
  EXPECT_EQ(t.hidden_share(), 0);
}

// Returns the timings of each rank.
std::vector<std::vector<ContextTiming>> time_on_ranks(const ContextGrid& grid, int ranks) {
  std::vector<std::vector<ContextTiming>> told(static_cast<std::size_t>(ranks));
  const MeshLayout layout{.axes = {{"cp", ranks, AxisTransfers::beside_kernels}}};
  EXPECT_EQ(run_mesh(layout,
                     [&](Mesh& mesh) {
                       auto& own = told[static_cast<std::size_t>(mesh.rank())];
                       time_context(grid, mesh, ExecContext{Stream::cpu(1)},
                                    [&](const ContextTiming& t) { own.push_back(t); });
                     }),
            "");
  return told;
}

double in_lane(const ContextTimeline& t, TimelineLane lane) {
  return static_cast<double>(
      std::count_if(t.bars.begin(), t.bars.end(), [&](const TimelineBar& b) { return b.lane == lane; }));
}

TEST(DistContextTiming, EveryScheduleHasTimingsAndMessages) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  ContextGrid grid;
  grid.lengths = {256};
  grid.heads = grid.kv_heads = 2, grid.head_dim = 16;
  grid.schedules = {ContextSchedule::ring, ContextSchedule::gather, ContextSchedule::all_to_all};
  grid.seconds = 0.01;
  const auto told = time_on_ranks(grid, 2);
  for (const auto& timings : told) {
    ASSERT_EQ(timings.size(), 3u);
    for (const ContextTiming& t : timings) {
      for (const double seconds : {t.forward_seconds, t.both_seconds, t.computing_seconds, t.transfer_seconds})
        EXPECT_TRUE(std::isfinite(seconds) && seconds > 0) << t.schedule << " " << seconds;
      EXPECT_TRUE(std::isfinite(t.slowdown())) << t.schedule;
      EXPECT_TRUE(t.hidden_share() >= 0 && t.hidden_share() <= 1) << t.schedule << " " << t.hidden_share();
      EXPECT_TRUE(t.waited_seconds >= length_of(t.timeline.waiting())) << t.schedule;
      EXPECT_TRUE(t.waited_seconds > 0 && std::isfinite(t.waited_seconds)) << t.schedule << " " << t.waited_seconds;
      EXPECT_GE(in_lane(t.timeline, TimelineLane::computation), 2) << t.schedule;
      for (const TimelineBar& b : t.timeline.bars)
        EXPECT_TRUE(0 <= b.time.begin && b.time.begin <= b.time.end && b.time.end <= t.timeline.seconds) << b.name;
    }
    // With f32 keys, the type does not distinguish keys from gradients.
    EXPECT_EQ(in_lane(timings[0].timeline, TimelineLane::messages), 3) << "ring: keys twice, gradients once";
    EXPECT_EQ(in_lane(timings[1].timeline, TimelineLane::keys), 2) << "gather";
    EXPECT_EQ(in_lane(timings[1].timeline, TimelineLane::gradients), 1) << "gather";
    EXPECT_GE(in_lane(timings[2].timeline, TimelineLane::messages), 4) << "all_to_all: there and back, twice";
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(told[0][i].waited_seconds, told[1][i].waited_seconds);
    EXPECT_EQ(told[0][i].hidden_share(), told[1][i].hidden_share());
  }
}

TEST(DistContextTiming, HybridTracesItsGroups) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  ContextGrid grid;
  grid.lengths = {256};
  grid.heads = grid.kv_heads = 2, grid.head_dim = 16;
  grid.schedules = {ContextSchedule::hybrid, ContextSchedule::ring};
  grid.parallel.cp_ranks_per_node = 2;
  grid.seconds = 0.01;
  for (const auto& timings : time_on_ranks(grid, 4)) {
    ASSERT_EQ(timings.size(), 2u);
    EXPECT_EQ(timings[0].schedule, "hybrid");
    EXPECT_GT(timings[0].transfer_seconds, 0);
    EXPECT_GT(timings[0].computing_seconds, 0);
    // One head per rank. Inside the node: heads there and back, twice. Between the two nodes: keys twice, gradients
    // once.
    EXPECT_EQ(in_lane(timings[0].timeline, TimelineLane::messages), 7);
  }
}

class DistBenchContext : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    folder_ = fs::temp_directory_path() / str("ringmaster-bench-context-", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static Finished bench(const std::vector<std::string>& more) {
    std::vector<std::string> command = {
        ring_binary(), "launch", "--nproc-per-node", "2", "--",         "bench", "context",   "--device", "cpu",
        "--threads",   "1",      "--heads",          "2", "--head-dim", "16",    "--seconds", "0.01"};
    command.insert(command.end(), more.begin(), more.end());
    return run_process(command);
  }

  fs::path folder_;
};

TEST_F(DistBenchContext, DrawsEachLengthAndSchedule) {
  const Finished end =
      bench({"--length", "128,256", "--schedule", "ring,gather", "--timeline", path("t.svg"), "--csv", path("t.csv")});
  ASSERT_EQ(end.code, 0) << end.output;
  for (const char* part : {"waited", "hidden", "slowdown"})
    EXPECT_NE(end.output.find(part), std::string::npos) << end.output;
  for (const char* name : {"t-128-ring.svg", "t-128-gather.svg", "t-256-ring.svg", "t-256-gather.svg"}) {
    const std::string svg = read_file(path(name));
    expect_well_formed(svg);
    EXPECT_NE(svg.find("over 2 ranks"), std::string::npos) << svg;
    EXPECT_NE(svg.find("hidden "), std::string::npos) << svg;
    EXPECT_NE(svg.find("attention_backward, "), std::string::npos) << svg;
  }
  std::istringstream csv(read_file(path("t.csv")));
  std::vector<std::string> lines;
  for (std::string line; std::getline(csv, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_NE(lines[0].find(",waited_ms,hidden,slowdown,"), std::string::npos) << lines[0];
  for (const std::string& line : lines)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::count(lines[0].begin(), lines[0].end(), ',')) << line;
}

TEST_F(DistBenchContext, OnePictureKeepsItsNameAndErrorsComeFirst) {
  const Finished end = bench({"--length", "128", "--schedule", "ring", "--timeline", path("one.svg")});
  ASSERT_EQ(end.code, 0) << end.output;
  EXPECT_TRUE(fs::exists(path("one.svg"))) << end.output;
  const Finished refused = bench({"--length", "128", "--timeline", path("none/one.svg")});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.output.find("--timeline: cannot write " + path("none/one")), std::string::npos) << refused.output;
  EXPECT_EQ(refused.output.find("fwd ms"), std::string::npos) << refused.output;
}

TEST_F(DistBenchContext, BadInputIsRefused) {
  const auto refused = [](const std::vector<std::string>& more, const std::vector<std::string>& why) {
    const Finished end = bench(more);
    EXPECT_NE(end.code, 0) << why[0];
    for (const std::string& part : why) EXPECT_NE(end.output.find(part), std::string::npos) << end.output;
  };
  refused({"--kv-heads", "1", "--schedule", "ring,all_to_all"}, {"KV heads", "2 ranks, got 1"});
  refused({"--kv-heads", "3"}, {"--heads: ", "3 KV heads, got 2"});
  refused({"--length", "0"}, {"--length: "});
  refused({"--kv-heads", "1", "--schedule", "hybrid"}, {"hybrid requires KV heads", "2 ranks of a node, got 1"});
  EXPECT_EQ(bench({"--kv-heads", "1", "--length", "64"}).output.find("all_to_all "), std::string::npos);
}

}  // namespace
}  // namespace ring::test
