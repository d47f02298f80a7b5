#include "inspect/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "bench/ops.h"
#include "inspect/profiler.h"
#include "model/scopes.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

std::string path_of(const Profile& p, int part) {
  std::string path;
  for (; part >= 0; part = p.parts[static_cast<std::size_t>(part)].parent)
    path = p.parts[static_cast<std::size_t>(part)].name() + "/" + path;
  return path;
}

bool within(const ProfileSpan& inner, const ProfileSpan& outer) {
  constexpr double kRounding = 1e-6;
  return inner.begin >= outer.begin - kRounding && inner.end() <= outer.end() + kRounding;
}

// Returns the words of the line that begins with `name`.
std::vector<std::string> row(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + " ")) continue;
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
  }
  ADD_FAILURE() << "no line '" << name << "' in\n" << text;
  return {};
}

// Two steps of 10 ms: a GEMM of 4 ms in a block's forward and one of 2 ms in its backward, and 3 copies of 1 ms.
Profile make_profile() {
  Profile p;
  for (int step = 0; step < 2; ++step) {
    const double at = 0.01 * step;
    const int block = static_cast<int>(p.parts.size());
    p.steps.push_back({at, 0.01});
    p.parts.push_back({block_scope(7), "", -1, {at, 0.004}, {at, 0.001}});
    p.parts.push_back({{scopes::backward}, "", -1, {at + 0.004, 0.002}, {at, 0.001}});
    p.parts.push_back({block_scope(7), "", block + 1, {at + 0.004, 0.002}, {at, 0.001}});
    p.calls.push_back({"matmul", "fast", {4e9, 100, "f32[1]"}, block, {at, 0.004}, {at, 0.0001}});
    p.calls.push_back({"matmul", "fast", {1e9, 100, "f32[2]"}, block + 2, {at + 0.004, 0.002}, {at, 0.0001}});
    for (int i = 0; i < 3; ++i)
      p.calls.push_back({"copy", "only", {0, 1e6, "f32[3]"}, -1, {at + 0.006 + 0.001 * i, 0.001}, {at, 0.0001}});
  }
  return p;
}

TEST(Profile, TableShowsTimesAndFloors) {
  const std::string text = profile_table(make_profile(), {.flops_per_second = 2e12, .bytes_per_second = 1e10});
  using Words = std::vector<std::string>;
  // 4e9 operations at 2e12 per second take 2 ms, half of the measured time. The longest op comes first.
  EXPECT_EQ(row(text, "matmul"), (Words{"matmul", "fast", "f32[1]", "1", "4.000", "40.0%", "2.000", "2.00"}));
  // 3 x 1e6 bytes at 1e10 per second take 0.3 ms.
  EXPECT_EQ(row(text, "copy"), (Words{"copy", "only", "f32[3]", "3", "3.000", "30.0%", "0.300", "10.00"}));
  EXPECT_LT(text.find("f32[1]"), text.find("f32[3]"));
  EXPECT_LT(text.find("f32[3]"), text.find("f32[2]"));
  EXPECT_EQ(row(text, "not in kernels"), (Words{"not", "in", "kernels", "1.000", "10.0%"}));
  EXPECT_EQ(row(text, "one step"), (Words{"one", "step", "10.000"}));
  EXPECT_EQ(row(text, "blocks"), (Words{"blocks", "4.000", "2.000", "6.000", "60.0%"}));
  EXPECT_EQ(row(text, "other"), (Words{"other", "3.000", "0.000", "3.000", "30.0%"}));
}

TEST(Profile, TableWithoutCeilingsHasNoFloors) {
  const std::string text = profile_table(make_profile(), {});
  EXPECT_EQ(row(text, "copy"), (std::vector<std::string>{"copy", "only", "f32[3]", "3", "3.000", "30.0%", "-", "-"}));
}

TEST(Profile, TraceThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(write_trace(make_profile(), "no/such/folder/profile.json"), Error);
}

Profile profile_two_steps() {
  StepBenchmark bench(tiny_config());
  Profiler profiler(2);
  time_steps(bench, 0, 1, &profiler);
  return profiler.read_profile();
}

double share_in_kernels(const Profile& p) {
  double seconds = 0;
  for (const ProfiledCall& c : p.calls) seconds += c.device.seconds;
  return seconds / (static_cast<double>(p.steps.size()) * p.seconds_per_step());
}

// On a busy machine, other processes may use the core between two kernels.
TEST(Profiler, FindsThatStepsConsistOfKernels) {
  double best = 0;
  for (int i = 0; i < 20 && best <= 0.5; ++i) best = std::max(best, share_in_kernels(profile_two_steps()));
  EXPECT_GT(best, 0.5) << "0.95 on an idle machine";
}

TEST(Profiler, RecordsEveryKernelOfTheWatchedSteps) {
  const Profile p = profile_two_steps();
  ASSERT_EQ(p.steps.size(), 2u);
  EXPECT_GE(p.steps[1].begin, p.steps[0].end());
  EXPECT_EQ(p.calls.size() % 2, 0u);

  for (std::size_t i = 0; i < p.calls.size(); ++i) {
    const ProfiledCall& c = p.calls[i];
    const std::size_t step = i / (p.calls.size() / 2);
    EXPECT_TRUE(within(c.device, p.steps[step])) << c.slot << " of step " << step;
    if (c.part >= 0) {
      EXPECT_TRUE(within(c.device, p.parts[static_cast<std::size_t>(c.part)].device));
    }
  }
  for (const ProfiledPart& part : p.parts) {
    if (part.parent < 0 || part.device.seconds == 0) continue;
    EXPECT_TRUE(within(part.device, p.parts[static_cast<std::size_t>(part.parent)].device)) << part.name();
  }
}

TEST(Profiler, KernelsBelongToTheirParts) {
  StepBenchmark bench(tiny_config());
  Profiler profiler(1);
  time_steps(bench, 0, 1, &profiler);
  const Profile p = profiler.read_profile();
  int attention[2] = {0, 0}, updates = 0;
  for (const ProfiledCall& c : p.calls) {
    const std::string path = path_of(p, c.part);
    const auto expect = [&](std::string_view slot, bool good) {
      EXPECT_TRUE(c.slot != slot || good) << slot << " in " << path;
    };
    expect("attention", path == "blocks.0/blocks.0.attention/" || path == "blocks.1/blocks.1.attention/");
    expect("attention_backward", path.starts_with("backward/blocks."));
    expect("cross_entropy", path == "loss_head/");
    expect("embedding_backward", path.starts_with("backward/embedding/"));
    expect("adamw", path == "optimizer/");
    updates += c.slot == "adamw";
    for (int block : {0, 1})
      attention[block] += c.slot == "attention_backward" && path.starts_with(str("backward/blocks.", block, "/"));
  }
  EXPECT_EQ(attention[0], 2);  // once per micro-batch
  EXPECT_EQ(attention[1], 2);
  EXPECT_EQ(updates, 2);  // one for vectors and one for matrices
}

TEST(GpuProfiler, WatchesWithoutWaiting) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  Config config = tiny_config();
  config.run.device = DeviceChoice::cuda;
  config.run.tuning = (std::filesystem::temp_directory_path() / str("ring_profile_", getpid(), ".yaml")).string();
  StepBenchmark bench(config);
  Trainer& trainer = bench.trainer();
  Profiler profiler(2);
  for (bool last = false; !last;) {
    profiler.before_launch(trainer);
    const std::uint64_t before = host_wait_count();
    trainer.launch();
    last = profiler.after_launch(trainer);
    if (trainer.steps_done() > Profiler::kWarmup) {
      EXPECT_EQ(host_wait_count(), before) << "step " << trainer.steps_done();
    }
    while (trainer.in_flight() > (last ? 0 : trainer.max_in_flight())) {
      EXPECT_TRUE(trainer.finish().accepted);
    }
  }
  const Profile p = profiler.read_profile();
  ASSERT_EQ(p.steps.size(), 2u);
  for (const ProfiledCall& c : p.calls) {
    EXPECT_GT(c.device.seconds, 0) << c.slot;
    EXPECT_TRUE(within(c.device, p.steps[0]) || within(c.device, p.steps[1])) << c.slot;
  }
  const OpsReport r = time_ops(bench, 1e-3, 2);
  for (const OpTiming& o : r.ops) EXPECT_GT(o.seconds, 0) << o.slot;
  std::filesystem::remove(config.run.tuning);
}

TEST(Profiler, RefusesNoSteps) { EXPECT_THROW(Profiler(0), Error); }

// The operations of all GEMMs and of each pass follow from the shapes: 2 forward and 4 backward per weight.
TEST(BenchmarkOps, CountsTheWorkOfAStep) {
  StepBenchmark bench(tiny_config());
  const OpsReport r = time_ops(bench, 1e-4, 1);
  const ModelConfig& m = bench.config().model;
  const double tokens = bench.tokens_per_step(), width = static_cast<double>(m.width);
  const double weights = static_cast<double>(m.layers) * width *
                             static_cast<double>((2 * m.heads + 2 * m.kv_heads) * m.head_dim + 3 * m.mlp_width) +
                         width * static_cast<double>(m.vocab_size);
  const auto pairs = static_cast<double>(m.context * (m.context + 1) / 2);
  const double attention =
      14 * static_cast<double>(m.layers * m.heads * m.head_dim) * tokens / static_cast<double>(m.context) * pairs;
  double products_seen = 0, attention_seen = 0;
  for (const OpTiming& o : r.ops) {
    EXPECT_GT(o.calls, 0) << o.slot;
    EXPECT_GT(o.seconds, 0) << o.slot;
    if (o.slot == "matmul") products_seen += o.calls * o.cost.flops;
    if (o.slot.starts_with("attention")) attention_seen += o.calls * o.cost.flops;
  }
  EXPECT_DOUBLE_EQ(products_seen, 6 * weights * tokens);
  EXPECT_DOUBLE_EQ(attention_seen, attention);
  const StepFloor f = r.step_floor();
  EXPECT_GT(f.products, 0);
  EXPECT_GT(f.attention, 0);
  EXPECT_GT(f.rest, 0);
  EXPECT_GT(r.step_seconds, 0);
}

TEST(BenchmarkOps, FloorFollowsFromTimes) {
  OpsReport r;
  r.ceilings = {.flops_per_second = 1e12, .bytes_per_second = 1e9};
  r.ops = {{"matmul", "a", {1e9, 1e6, ""}, 3, 0.002},
           {"attention_backward", "a", {1e9, 1e6, ""}, 2, 0.005},
           {"rope", "a", {1e3, 8.5e5, ""}, 4, 0.1}};
  EXPECT_DOUBLE_EQ(r.step_floor().products, 0.006);
  EXPECT_DOUBLE_EQ(r.step_floor().attention, 0.01);
  EXPECT_DOUBLE_EQ(r.step_floor().rest, 4 * 0.001);  // 8.5e5 bytes at 85 % of 1e9 per second
  EXPECT_DOUBLE_EQ(r.ceilings.floor_seconds({1e9, 1e3, ""}), 0.001);
  EXPECT_DOUBLE_EQ(r.ceilings.floor_seconds({1e3, 1e6, ""}), 0.001);
  EXPECT_EQ(Ceilings{}.floor_seconds({1e9, 1e3, ""}), 0);
}

TEST(BenchmarkOps, FilteredOpsAloneAreMeasured) {
  StepBenchmark bench(tiny_config());
  const OpsReport r = time_ops(bench, 1e-4, 1, "rope");
  for (const OpTiming& o : r.ops) EXPECT_EQ(o.seconds > 0, o.slot.find("rope") != std::string::npos) << o.slot;
}

}  // namespace
}  // namespace ring::test
