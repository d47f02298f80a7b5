#pragma once
// A fixture for training runs of the program under its launcher, in a folder of their own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/gloo/gloo.h"
#include "tests/launcher/files.h"
#include "tests/paths.h"

namespace ring::test {

namespace fs = std::filesystem;

inline constexpr const char* kTrainingConfig = R"(
run: {name: t, device: cpu}
model: {context: 16, layers: 2, width: 32, heads: 4}
data: {path: corpus.h5}
train: {batch_size: 8, micro_batch: 1, steps: 8, eval_interval: 4, log_interval: 1, bucket_bytes: 16384}
checkpoint: {interval: 4}
)";

class TrainingRuns : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    std::string pattern = (fs::temp_directory_path() / "ring_training_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    write_training_text(dir_ / "text.txt", 97);
    std::ofstream(dir_ / "t.yaml") << kTrainingConfig;
    ASSERT_EQ(run({"data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--validation-fraction", "0.1",
                   "--output", "corpus.h5"}),
              0)
        << read_file(dir_ / "log");
  }
  void TearDown() override { fs::remove_all(dir_); }

  using Environment = std::map<std::string, std::string>;
  pid_t start(std::vector<std::string> arguments, const Environment& more = {}, const char* log_file = "log") const {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    if (chdir(dir_.c_str()) != 0) _exit(120);
    for (const auto& [name, value] : more) setenv(name.c_str(), value.c_str(), 1);
    const int log = open(log_file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>("ringmaster")};
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    execv(ring_binary().c_str(), argv.data());
    _exit(121);
  }
  static int wait(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int run(const std::vector<std::string>& arguments) const { return wait(start(arguments)); }
  static std::vector<std::string> launch(int processes, const std::string& directory,
                                         const std::string& more = "train.steps=8") {
    return {"launch",
            "-n",
            std::to_string(processes),
            "--threads-per-worker",
            "1",
            "--",
            "train",
            "t.yaml",
            "run.directory=" + directory,
            more};
  }

  // Returns the loss of every logged step and validation.
  std::vector<double> losses(const std::string& directory) const {
    std::ifstream lines(dir_ / directory / "metrics.jsonl");
    std::vector<double> out;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("loss") && record["group"] != "bad_step") out.push_back(record["loss"].get<double>());
    }
    return out;
  }
  // Returns the records of a group, also while the run writes: an incomplete last line is skipped.
  std::vector<nlohmann::json> records(const std::string& directory, const std::string& group) const {
    std::ifstream lines(dir_ / directory / "metrics.jsonl");
    std::vector<nlohmann::json> out;
    for (std::string line; std::getline(lines, line) && !lines.eof();)
      if (auto record = nlohmann::json::parse(line); record.at("group") == group) out.push_back(std::move(record));
    return out;
  }
  // Returns the bytes of all shards of the newest checkpoint.
  std::string shard(const std::string& directory) const {
    std::string all;
    fs::path newest;
    for (const auto& step : fs::directory_iterator(dir_ / directory / "checkpoints"))
      newest = std::max(newest, step.path());
    std::vector<fs::path> files;
    for (const auto& f : fs::directory_iterator(newest))
      if (f.path().extension() == ".h5") files.push_back(f.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& f : files) all += read_file(f);
    return all;
  }

  fs::path dir_;
};

}  // namespace ring::test
