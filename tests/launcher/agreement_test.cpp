// Processes with different command lines, as other launchers may start them: all ranks refuse them and name the
// difference.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "comm/gloo/gloo.h"
#include "launcher/supervisor.h"
#include "tests/launcher/files.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using test::Finished;
using test::Process;

constexpr const char* kConfig = R"(
run: {name: t, device: cpu, threads: 1}
model: {context: 16, layers: 2, width: 32, heads: 4}
data: {path: corpus.h5}
train: {batch_size: 8, steps: 2}
)";

class DistAgreement : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    std::string pattern = (fs::temp_directory_path() / "ring_agreement_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    test::write_training_text(dir_ / "text.txt", 97);
    test::write_training_text(dir_ / "other.txt", 89);
    std::ofstream(dir_ / "t.yaml") << kConfig;
    prepare("text.txt", "bytes", "corpus.h5");
    prepare("text.txt", "bytes", "copy.h5");
    prepare("other.txt", "bytes", "other.h5");
    prepare("text.txt", "chars", "chars.h5");
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::vector<std::string> in(const fs::path& dir, std::vector<std::string> arguments) {
    std::vector<std::string> command = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", dir.string(), test::ring_binary()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  void prepare(const std::string& text, const std::string& tokenizer, const std::string& corpus) const {
    const Finished f =
        test::run_process(in(dir_, {"data", "prepare", "--input", text, "--tokenizer", tokenizer, "--output", corpus}));
    ASSERT_EQ(f.code, 0) << f.output;
  }
  // Returns a new port below the ephemeral range.
  static int port() {
    static int next = 12000 + getpid() % 500 * 16;
    return next += 16;
  }
  // Runs one process per list of arguments, the last process in the folder `last` if given. Returns how they ended.
  std::vector<Finished> run(const std::vector<std::vector<std::string>>& ranks, const fs::path& last = {}) const {
    const std::string at = std::to_string(port());
    std::vector<std::unique_ptr<Process>> processes;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const std::string rank = std::to_string(r);
      const std::string all = std::to_string(ranks.size());
      processes.push_back(std::make_unique<Process>(in(last.empty() || r + 1 < ranks.size() ? dir_ : last, ranks[r]),
                                                    Process::Environment{{"RANK", rank},
                                                                         {"LOCAL_RANK", rank},
                                                                         {"WORLD_SIZE", all},
                                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                                         {"MASTER_PORT", at}}));
    }
    std::vector<Finished> ends;
    for (auto& p : processes) ends.push_back(p->wait());
    return ends;
  }
  void expect_refused(const std::vector<std::string>& one, const std::string& line) const {
    const auto begin = Clock::now();
    for (const Finished& f : run({{"train", "t.yaml"}, one})) {
      EXPECT_EQ(f.code, 1) << f.output;
      EXPECT_NE(f.output.find("\n  " + line + "\n"), std::string::npos) << line << "\n" << f.output;
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(100)) << line;
    EXPECT_FALSE(fs::exists(dir_ / "runs")) << "refused before anything is written";
  }
  void expect_setting(const std::string& key, const std::string& value, const std::string& other) const {
    expect_refused({"train", "t.yaml", key + "=" + other}, key + ": " + value + " on rank 0; " + other + " on rank 1");
  }

  fs::path dir_;
};

TEST_F(DistAgreement, DifferentSettingsAreRefused) {
  expect_setting("optimizer.lr", "0.001", "0.002");
  expect_setting("run.seed", "1337", "7");
  expect_setting("optimizer.clip", "1", "0.5");
  expect_setting("optimizer.weight_decay", "0.1", "0");
  expect_setting("schedule.warmup_steps", "100", "1");
  expect_setting("model.dropout", "0", "0.1");
  expect_setting("model.norm_eps", "1e-5", "1e-6");
  expect_setting("model.rope.theta", "10000", "50000");
  expect_setting("model.positions", "rope", "learned");
}

TEST_F(DistAgreement, DifferentLayoutsAreRefused) {
  expect_setting("parallel.cp", "1", "2");
  expect_setting("parallel.tp", "1", "2");
  expect_setting("parallel.cp", "1", "3");  // a value that even one rank alone would refuse
  expect_setting("parallel.zero", "0", "3");
  expect_setting("model.layers", "2", "3");
  expect_setting("model.width", "32", "64");
  expect_setting("train.eval_interval", "250", "1");
}

TEST_F(DistAgreement, DifferentDataAndOptionsAreRefused) {
  const auto refused = [&](const std::string& corpus, const std::string& text) {
    for (const Finished& f : run({{"train", "t.yaml"}, {"train", "t.yaml", "data.path=" + corpus}})) {
      EXPECT_EQ(f.code, 1) << f.output;
      EXPECT_NE(f.output.find("the ranks read different data"), std::string::npos) << f.output;
      EXPECT_NE(f.output.find(text), std::string::npos) << f.output;
    }
  };
  refused("other.h5", "\n  data.path (training): ");
  refused("chars.h5", "\n  the tokenizer of the corpus: ");
  expect_refused({"train", "t.yaml", "--fresh"}, "--fresh: not given on rank 0; given on rank 1");
}

// The second rank is on a machine that does not share the folder.
TEST_F(DistAgreement, ACheckpointThatNotAllRanksFindIsRefused) {
  ASSERT_EQ(test::run_process(in(dir_, {"train", "t.yaml"})).code, 0);
  const fs::path elsewhere = dir_ / "elsewhere";
  fs::create_directory(elsewhere);
  for (const char* name : {"t.yaml", "corpus.h5"}) fs::copy(dir_ / name, elsewhere / name);
  for (const Finished& f : run({{"train", "t.yaml"}, {"train", "t.yaml"}}, elsewhere)) {
    EXPECT_EQ(f.code, 1) << f.output;
    EXPECT_NE(f.output.find("\n  runs/t/checkpoints/step-000000002: hash "), std::string::npos) << f.output;
    EXPECT_NE(f.output.find(" on rank 0; missing on rank 1"), std::string::npos) << f.output;
  }
}

TEST_F(DistAgreement, SettingsOfEachRankMayDiffer) {
  for (const Finished& f : run({{"train", "t.yaml"},
                                {"train", "t.yaml", "data.path=copy.h5", "run.threads=2", "train.log_interval=1",
                                 "data.prefetch=0", "run.tuning=elsewhere.yaml"}}))
    EXPECT_EQ(f.code, 0) << f.output;
}

TEST_F(DistAgreement, DifferentBenchmarksAreRefused) {
  const std::vector<std::string> context = {"bench", "context", "--length", "64", "--heads", "2", "--seconds", "0.01"};
  std::vector<std::string> longer = context;
  longer[3] = "128";
  for (const Finished& f : run({context, longer})) {
    EXPECT_EQ(f.code, 1) << f.output;
    EXPECT_NE(f.output.find("--length: 64 on rank 0; 128 on rank 1"), std::string::npos) << f.output;
  }
  for (const Finished& f : run({{"bench", "step", "t.yaml", "model.vocab_size=64", "--steps", "1"},
                                {"bench", "step", "t.yaml", "model.vocab_size=64", "--steps", "2"}})) {
    EXPECT_EQ(f.code, 1) << f.output;
    EXPECT_NE(f.output.find("--steps: 1 on rank 0; 2 on rank 1"), std::string::npos) << f.output;
  }
}

// The workers of an agent have different settings, as if a file differed between machines.
TEST_F(DistAgreement, TheLauncherPrintsTheDifferenceOnce) {
  const pid_t agent = fork();
  if (agent == 0) {
    const int file = open((dir_ / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    LaunchOptions options;
    options.processes = 3;
    options.program = "/bin/sh";
    options.command = {"-c", "cd " + dir_.string() + " && exec " + test::ring_binary() +
                                 " train t.yaml run.seed=$((RINGMASTER_RANK / 2))"};
    _exit(launch(options));
  }
  int status = 0;
  waitpid(agent, &status, 0);
  std::ostringstream err;
  err << std::ifstream(dir_ / "err").rdbuf();
  EXPECT_EQ(WEXITSTATUS(status), 1) << err.str();
  const std::string line = "run.seed: 0 on ranks 0, 1; 1 on rank 2";
  const std::size_t first = err.str().find(line);
  ASSERT_NE(first, std::string::npos) << err.str();
  EXPECT_EQ(err.str().find(line, first + 1), std::string::npos) << err.str();
}

}  // namespace
}  // namespace ring
