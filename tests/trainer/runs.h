#pragma once
// Whole runs of the program, as a user starts them, on a small corpus of bytes in a temporary folder.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {

namespace fs = std::filesystem;

// Every run trains a model with a few thousand parameters.
class Runs : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ringmaster-run-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 600; ++i) text << "line " << i << " of a text that repeats itself " << i % 7 << "\n";
    text.close();
    ASSERT_EQ(ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("a.h5"),
                    "--validation-fraction", "0.1"})
                  .code,
              0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static Finished ring(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ring_binary());
    return run_process(arguments);
  }
  std::vector<std::string> train(const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {ring_binary(),
                                    "train",
                                    source_dir() + "/configs/nanogpt_cpu.yaml",
                                    "run.directory=" + path(run),
                                    "run.device=cpu",
                                    "data.path=" + path("a.h5"),
                                    "run.threads=2",
                                    "model.context=16",
                                    "model.width=32",
                                    "model.layers=2",
                                    "model.dropout=0.1",
                                    "train.steps=120",
                                    "train.batch_size=4",
                                    "train.micro_batch=2",
                                    "train.log_interval=1",
                                    "train.eval_interval=20",
                                    "schedule.warmup_steps=10",
                                    "checkpoint.interval=5"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Trains a run, which must succeed.
  Finished trained(const std::string& run, std::vector<std::string> settings,
                   const std::vector<std::string>& more = {}) const {
    settings.insert(settings.end(), more.begin(), more.end());
    const Finished f = run_process(train(run, settings));
    EXPECT_EQ(f.code, 0) << f.output;
    return f;
  }
  // Returns the loss of every step, as written. Records of the same step must be equal.
  std::map<int, std::string> losses(const std::string& run) const {
    std::map<int, std::string> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.at("group") != "train") continue;
      const std::string loss = json.at("loss").dump() + " " + json.at("grad_norm").dump();
      const auto [at, added] = out.emplace(json.at("step").get<int>(), loss);
      EXPECT_EQ(at->second, loss);
    }
    return out;
  }
  // Returns all values with this name from a group of records, in order.
  std::vector<double> values(const std::string& run, const std::string& group, const std::string& name) const {
    std::vector<double> out;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const auto json = nlohmann::json::parse(line); json.at("group") == group && json.contains(name))
        out.push_back(json.at(name));
    return out;
  }
  // Returns the loss on the whole validation split with the last checkpoint.
  double loss_of(const std::string& run) const {
    const Finished f = ring({"eval", path(run), "--device", "cpu", "--threads", "2", "--json"});
    EXPECT_EQ(f.code, 0) << f.output;
    return nlohmann::json::parse(f.output).at("loss");
  }
  // Returns the number of steps that a run has recorded.
  std::size_t records(const std::string& run) const {
    std::ifstream file(folder_ / run / "metrics.jsonl");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.find("\"group\":\"train\"") != std::string::npos;
    return count;
  }
  // Returns the hashes of all tensors in a checkpoint, by default that of the last step.
  nlohmann::json tensors(const std::string& run, const std::string& step = "step-000000120") const {
    std::ifstream file(folder_ / run / "checkpoints" / step / "manifest.json");
    return nlohmann::json::parse(file).at("tensors");
  }

  fs::path folder_;
};

}  // namespace ring::test
