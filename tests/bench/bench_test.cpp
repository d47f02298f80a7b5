// `ringmaster bench` and `train --profile`, as a user starts them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/check.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

class BenchCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / str("ringmaster-bench-test-", getpid());
    fs::create_directories(folder_);
    std::ofstream(path("tiny.yaml"))
        << "run: {threads: 2, device: cpu}\n"
           "model: {vocab_size: 300, context: 32, layers: 2, width: 64, heads: 4, kv_heads: 2, mlp: swiglu, "
           "mlp_width: 96, norm: rms, positions: rope, tied_embeddings: false}\n"
           "data: {path: "
        << path("a.h5") << "}\ntrain: {batch_size: 8, micro_batch: 4, steps: 8}\nschedule: {warmup_steps: 1}\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static Finished ring(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ring_binary());
    return run_process(arguments);
  }
  static void expect_error(const std::vector<std::string>& arguments, int code, const std::string& part) {
    const Finished end = ring(arguments);
    EXPECT_EQ(end.code, code) << end.output;
    EXPECT_NE(end.output.find(part), std::string::npos) << end.output;
  }
  void prepare_corpus() const {
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 300; ++i) text << "line " << i << " of a text that repeats itself " << i % 7 << "\n";
    text.close();
    const Finished end =
        ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("a.h5")});
    ASSERT_EQ(end.code, 0) << end.output;
  }
  Finished train(const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"train", path("tiny.yaml"), "run.directory=" + path(run), "train.log_interval=1"};
    all.insert(all.end(), more.begin(), more.end());
    return ring(all);
  }
  std::vector<std::string> losses(const std::string& run) const {
    std::vector<std::string> out;
    std::ifstream file(path(run) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.at("group") == "train") out.push_back(json.at("loss").dump() + " " + json.at("grad_norm").dump());
    }
    return out;
  }
  nlohmann::json trace(const std::string& file) const {
    std::ifstream in(file);
    return nlohmann::json::parse(in).at("traceEvents");
  }
  static std::vector<std::vector<std::string>> cells(const std::string& text) {
    std::vector<std::vector<std::string>> out;
    std::istringstream lines(text);
    for (std::string line, cell; std::getline(lines, line);) {
      std::istringstream in(line);
      out.emplace_back();
      while (std::getline(in, cell, ',')) out.back().push_back(cell);
    }
    return out;
  }

  fs::path folder_;
};

// Expects that spans are nested correctly and each kernel is within one of the steps. Returns the number of kernels.
int check_trace(const nlohmann::json& events, int steps) {
  using Span = std::pair<double, double>;
  std::map<std::string, Span> step_spans;
  std::vector<Span> kernels;
  std::set<std::string> names;
  for (const auto& e : events) {
    if (e.at("ph") == "M") continue;
    EXPECT_EQ(e.at("ph"), "X");
    EXPECT_GE(e.at("ts").get<double>(), 0) << e;
    EXPECT_GE(e.at("dur").get<double>(), 0) << e;
    const std::string name = e.at("name");
    names.insert(name);
    const double begin = e.at("ts"), end = begin + e.at("dur").get<double>();
    if (name.starts_with("step ")) step_spans[name] = {begin, end};
    if (!e.contains("args")) continue;
    kernels.emplace_back(begin, end);
    EXPECT_GT(e.at("args").at("bytes").get<double>(), 0) << e;
    EXPECT_FALSE(e.at("args").at("shape").get<std::string>().empty()) << e;
    EXPECT_FALSE(e.at("args").at("candidate").get<std::string>().empty()) << e;
  }
  EXPECT_EQ(step_spans.size(), static_cast<std::size_t>(steps));
  constexpr double kRounding = 0.01;  // microseconds
  for (const auto& [begin, end] : kernels)
    EXPECT_TRUE(std::ranges::any_of(step_spans, [&](const auto& step) {
      return begin >= step.second.first - kRounding && end <= step.second.second + kRounding;
    })) << begin;
  for (const char* name : {"embedding", "blocks.0", "blocks.1", "final_norm", "loss_head", "backward", "optimizer"})
    EXPECT_TRUE(names.contains(name)) << name;
  return static_cast<int>(kernels.size());
}

TEST_F(BenchCommand, NeedsTheSizesThatARunChooses) {
  for (const char* automatic : {"train.micro_batch=auto", "train.mlp_chunk=auto", "train.sequence_chunk=auto"})
    expect_error({"bench", "step", path("tiny.yaml"), automatic}, 1, "auto is chosen only");
}

TEST_F(BenchCommand, TrainProfilesWithoutChangingNumbers) {
  prepare_corpus();
  const Finished profiled = train("profiled", {"--profile", "2"});
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  EXPECT_NE(profiled.output.find("not in kernels"), std::string::npos) << profiled.output;
  EXPECT_NE(profiled.output.find("trace: " + path("profiled/profile.json")), std::string::npos) << profiled.output;
  EXPECT_GT(check_trace(trace(path("profiled/profile.json")), 2), 100);
  ASSERT_EQ(train("plain").code, 0);
  EXPECT_EQ(losses("profiled"), losses("plain"));
  EXPECT_EQ(losses("plain").size(), 8u);
}

TEST_F(BenchCommand, AShortRunIsProfiledIfItHasEnoughSteps) {
  prepare_corpus();
  const Finished one = train("one", {"train.steps=5", "--profile", "5"});  // profiles the steps that there are
  EXPECT_NE(one.output.find("profile of 1 step"), std::string::npos) << one.output;
  const Finished none = train("none", {"train.steps=4", "--profile", "5"});
  EXPECT_EQ(none.code, 0);
  EXPECT_NE(none.output.find("more train.steps"), std::string::npos) << none.output;
  EXPECT_FALSE(fs::exists(path("none/profile.json")));
  EXPECT_EQ(train("bad", {"--profile", "0"}).code, 2);
  EXPECT_EQ(train("bad", {"--profile", "many"}).code, 2);
}

TEST_F(BenchCommand, StepWritesALineAndATrace) {
  const std::vector<std::string> step = {"bench",    "step", path("tiny.yaml"), "--steps",         "2",
                                         "--warmup", "1",    "--csv",           path("steps.csv"), "--no-ceilings"};
  std::vector<std::string> second = step;
  for (const char* more : {"--who", "second", "--profile", "1", "--trace"}) second.emplace_back(more);
  second.push_back(path("trace.json"));
  ASSERT_EQ(ring(step).code, 0);
  const Finished end = ring(second);
  ASSERT_EQ(end.code, 0) << end.output;
  EXPECT_NE(end.output.find("parameters f32, moments f32, gradients f32"), std::string::npos) << end.output;
  check_trace(trace(path("trace.json")), 1);
  std::ifstream file(path("steps.csv"));
  const auto rows = cells({std::istreambuf_iterator<char>(file), {}});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0], (std::vector<std::string>{"who", "shape", "step_ms", "tokens_per_second", "first_seconds",
                                               "peak_gib", "loss"}));
  EXPECT_EQ(rows[1][0], "ringmaster");
  EXPECT_EQ(rows[2][0], "second");
  EXPECT_EQ(rows[1][1], "tiny");
  // A step has 8 sequences of 32 tokens.
  EXPECT_NEAR(std::stod(rows[1][2]) * std::stod(rows[1][3]), 1e3 * 8 * 32, 2);
}

TEST_F(BenchCommand, OpsAndFloorAreMeasured) {
  const Finished ops =
      ring({"bench", "ops", path("tiny.yaml"), "--seconds", "0.001", "--steps", "1", "--csv", "--filter", "attention"});
  ASSERT_EQ(ops.code, 0) << ops.output;
  EXPECT_NE(ops.output.find("op,candidate,shape,calls,us,"), std::string::npos) << ops.output;
  EXPECT_NE(ops.output.find("attention_backward,blocked,\"f32[128,4,16]\",4,"), std::string::npos) << ops.output;
  EXPECT_EQ(ops.output.find("matmul"), std::string::npos) << ops.output;

  const Finished floor =
      ring({"bench", "floor", path("tiny.yaml"), "--seconds", "0.001", "--steps", "1", "--csv", path("floors.csv")});
  ASSERT_EQ(floor.code, 0) << floor.output;
  std::ifstream file(path("floors.csv"));
  const auto rows = cells({std::istreambuf_iterator<char>(file), {}});
  ASSERT_EQ(rows.size(), 2u);
  ASSERT_EQ(rows[0].size(), rows[1].size());
  EXPECT_EQ(rows[0][1], "floor_ms");
  const double all = std::stod(rows[1][1]);
  EXPECT_NEAR(all, std::stod(rows[1][2]) + std::stod(rows[1][3]) + std::stod(rows[1][4]), 1e-3 + 1e-4 * all);
}

TEST_F(BenchCommand, AttentionIsMeasured) {
  const Finished end =
      ring({"bench", "attention", "--device", "cpu", "--heads", "4", "--kv-heads", "2", "--head-dim", "16,32",
            "--length", "8,64", "--tokens", "128", "--seconds", "0.001", "--causal", "--csv"});
  ASSERT_EQ(end.code, 0) << end.output;
  const auto rows = cells(end.output);
  ASSERT_EQ(rows.size(), 1u + 2 * 2 * 2) << end.output;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string>& r = rows[i];
    const double dim = std::stod(r[2]), length = std::stod(r[4]), sequences = std::stod(r[5]);
    EXPECT_EQ(sequences * length, 128);
    const double flops = (r[0] == "forward" ? 4 : 10) * 4 * dim * sequences * length * (length + 1) / 2;
    EXPECT_NEAR(std::stod(r[7]) * 1e-3 * std::stod(r[8]) * 1e12, flops, 0.2 * flops) << end.output;  // rounded output
  }
  const Finished slow = ring({"bench", "attention", "--device", "cpu", "--head-dim", "16", "--length", "16,512",
                              "--tokens", "16", "--seconds", "0.001", "--full", "--max-seconds", "1e-9"});
  EXPECT_EQ(slow.code, 0);
  EXPECT_NE(slow.output.find("left out"), std::string::npos) << slow.output;
}

TEST_F(BenchCommand, KindsOfAttentionAreMeasured) {
  const Finished end = ring({"bench",     "attention",  "--device",  "cpu",      "--heads",
                             "2",         "--head-dim", "16",        "--length", "512",
                             "--tokens",  "512",        "--seconds", "0.001",    "--causal",
                             "--csv",     "--rounds",   "3",         "--kind",   "dense,window,dilated,block_sparse",
                             "--window",  "64",         "--sinks",   "8",        "--segments",
                             "128,512",   "--rates",    "1,4",       "--block",  "64",
                             "--density", "0.3"});
  ASSERT_EQ(end.code, 0) << end.output;
  const auto rows = cells(end.output);
  ASSERT_EQ(rows.size(), 1u + 2 * 4) << end.output;
  std::map<std::string, double> kept;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string>& r = rows[i];
    kept[r[9]] = std::stod(r[10]);
    const double flops = (r[0] == "forward" ? 4 : 10) * 2 * 16 * 512 * 513 / 2 * kept[r[9]];
    EXPECT_NEAR(std::stod(r[7]) * 1e-3 * std::stod(r[8]) * 1e12, flops, 0.2 * flops) << end.output;
    if (r[9] == "dense") {
      EXPECT_EQ(std::stod(r[11]), 1);
    }
    EXPECT_GT(std::stod(r[11]), 0);
  }
  const double pairs = 512 * 513 / 2;
  double window = 0, dilated = 4 * 128 * 129 / 2;
  for (int t = 0; t < 512; ++t) window += std::min(t + 1, 64) + std::min(std::max(0, t - 63), 8);
  dilated += 128 * 129 / 2;  // in each head, every fourth position
  EXPECT_EQ(kept["dense"], 1);
  EXPECT_NEAR(kept["window"], window / pairs, 1e-5);
  EXPECT_NEAR(kept["dilated"], dilated / pairs, 1e-5);
  EXPECT_GT(kept["block_sparse"], 64 * 65 / 2 * 8 / pairs);
  EXPECT_LT(kept["block_sparse"], 0.8);
}

TEST_F(BenchCommand, BlocksByContentAreMeasured) {
  const Finished end = ring({"bench",    "attention",  "--device", "cpu",        "--heads",
                             "4",        "--kv-heads", "2",        "--head-dim", "16",
                             "--length", "512",        "--tokens", "1024",       "--seconds",
                             "0.001",    "--causal",   "--csv",    "--kind",     "dense,block_sparse",
                             "--block",  "64",         "--keep",   "4",          "--local",
                             "1",        "--first",    "2"});
  ASSERT_EQ(end.code, 0) << end.output;
  const auto rows = cells(end.output);
  ASSERT_EQ(rows.size(), 1u + 2 + 3) << end.output;
  double pairs = 0;
  for (int t = 0; t < 512; ++t) pairs += std::min(t / 64, 3) * 64 + t % 64 + 1;
  std::set<std::string> passes;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string>& r = rows[i];
    if (r[9] == "dense") continue;
    passes.insert(r[0]);
    EXPECT_GT(std::stod(r[7]), 0) << end.output;
    EXPECT_NEAR(std::stod(r[10]), pairs / (512 * 513 / 2), 1e-5) << end.output;
    const double flops = r[0] == "select" ? 0 : (r[0] == "forward" ? 4 : 10) * 4 * 16 * 2 * pairs;
    EXPECT_NEAR(std::stod(r[7]) * 1e-3 * std::stod(r[8]) * 1e12, flops, 0.2 * flops) << end.output;
    EXPECT_EQ(std::stod(r[13]), 0) << "each call makes its lists";
  }
  EXPECT_EQ(passes, (std::set<std::string>{"select", "forward", "backward"}));
}

TEST_F(BenchCommand, BadInputIsRefused) {
  expect_error({"bench", "step", path("none.yaml")}, 1, "none.yaml");
  expect_error({"bench", "ops", path("tiny.yaml"), "--filter", "nothing", "--seconds", "0.001", "--steps", "1"}, 1,
               "has 'nothing'");
  expect_error({"bench", "ops", path("tiny.yaml"), "model.layers=x"}, 1, "model.layers");
  expect_error({"bench", "attention", "--heads", "6", "--kv-heads", "4"}, 1, "6 heads cannot be divided");
  expect_error({"bench", "attention", "--device", "cpu", "--head-dim", "12"}, 1, "12 is not a positive multiple of 8");
  expect_error({"bench", "attention", "--device", "cpu", "--length", "0"}, 2, "--length: must be in [1");
  expect_error({"bench", "attention", "--device", "cpu", "--dtype", "bf16"}, 1, "--dtype: expected f32");
  expect_error({"bench", "attention", "--device", "tpu"}, 2, "--device");
  expect_error({"bench", "attention", "--device", "cpu", "--candidate", "none"}, 1, "no attention kernel none");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "window", "--window", "0"}, 2,
               "--window: must be in [1");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "dilated", "--segments", "64"}, 1,
               "--segments: [64] and rates: [1, 4, 16] must");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "block_sparse", "--block", "32"}, 2,
               "--block: must be in [64");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "block_sparse", "--block", "100"}, 1, "got 100");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "block_sparse", "--keep", "3"}, 1,
               "--keep: 3, but pattern: content needs more");
  expect_error({"bench", "attention", "--device", "cpu", "--kind", "block_sparse", "--keep", "8", "--full"}, 1,
               "only in causal attention");
  expect_error({"bench", "attention", "--kind", "block_sparse", "--keep", "8", "--density", "0.1"}, 2, "--density");
  expect_error({"bench", "attention", "--kind", "block_sparse", "--local", "2"}, 2, "--local requires --keep");
  expect_error({"bench", "attention", "--kind", "global"}, 2, "--kind");
  expect_error({"bench"}, 2, "commands: step, ops");
  std::ofstream(path("other.csv")) << "a,b\n1,2\n";
  expect_error({"bench", "step", path("tiny.yaml"), "--steps", "1", "--warmup", "0", "--no-ceilings", "--csv",
                path("other.csv")},
               1, "expected the columns who,shape");
}

}  // namespace
}  // namespace ring::test
