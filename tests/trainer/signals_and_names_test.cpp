// Runs that were started with a signal ignored, that are stopped during evaluation, or whose names are not UTF-8.

#include <csignal>
#include <iterator>
#include <thread>

#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class SignalledRuns : public Runs {
 protected:
  void wait_for_steps(const Process& process, const std::string& run, std::size_t steps) const {
    while (process.running() && (!fs::exists(folder_ / run / "metrics.jsonl") || losses(run).size() < steps))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // Stops a run whose evaluation after step 1 would take far longer than the test. Returns its output.
  std::string stop_in_evaluation(const std::vector<std::string>& settings, int code = 75) const {
    Process process(train("run", settings));
    wait_for_steps(process, "run", 1);
    process.signal(SIGTERM);
    const Finished stopped = process.wait();
    EXPECT_EQ(stopped.code, code) << stopped.output;
    EXPECT_NE(stopped.output.find("skipped the rest"), std::string::npos) << stopped.output;
    EXPECT_EQ(losses("run").size(), 1u);
    EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/step-000000001"));
    return stopped.output;
  }
};

// nohup(1) starts programs with SIGHUP ignored. Shells start background jobs with SIGINT ignored.
TEST_F(SignalledRuns, SignalsIgnoredAtTheStartStayIgnored) {
  for (const int number : {SIGHUP, SIGINT}) {
    const std::string run = "ignores-" + std::to_string(number);
    Process process(train(run, {"train.steps=20", "train.eval_interval=0"}), {}, [&] { ::signal(number, SIG_IGN); });
    wait_for_steps(process, run, 2);
    process.signal(number);
    process.signal(number);
    const Finished ended = process.wait();
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(ended.output.find("stopping"), std::string::npos) << ended.output;
    EXPECT_EQ(losses(run).size(), 20u);
  }
}

// Returns the child processes of a process.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

TEST_F(SignalledRuns, WorkersIgnoreSignalsThatTheLauncherIgnores) {
  std::vector<std::string> command = train("run", {"train.steps=20", "train.eval_interval=0"});
  command.insert(command.begin() + 1, {"launch", "-n", "1", "--"});
  Process process(command, {}, [] { ::signal(SIGHUP, SIG_IGN); });
  wait_for_steps(process, "run", 2);
  const std::vector<pid_t> workers = children_of(process.pid());
  ASSERT_EQ(workers.size(), 1u);
  ASSERT_EQ(::kill(workers[0], SIGHUP), 0);
  const Finished ended = process.wait();
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output.find("stopping"), std::string::npos) << ended.output;
  EXPECT_EQ(losses("run").size(), 20u);
}

// Some programs ignore SIGCHLD to leave no zombies, and their child processes inherit that.
TEST_F(SignalledRuns, ALauncherStartedWithSigchldIgnoredSeesItsWorkersEnd) {
  std::vector<std::string> command = train("run", {"train.steps=2", "train.eval_interval=0"});
  command.insert(command.begin() + 1, {"launch", "-n", "1", "--"});
  Process process(command, {}, [] { ::signal(SIGCHLD, SIG_IGN); });
  const Finished ended = process.wait();
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(losses("run").size(), 2u);
}

TEST_F(SignalledRuns, OtherSignalsStopARunThatIgnoresOne) {
  Process process(train("run", {"train.steps=100000", "train.eval_interval=0"}), {}, [] { ::signal(SIGHUP, SIG_IGN); });
  wait_for_steps(process, "run", 2);
  process.signal(SIGHUP);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

TEST_F(SignalledRuns, ALongValidationEndsWithACheckpoint) {
  std::ofstream text(folder_ / "long.txt");
  for (int i = 0; i < 400000; ++i) text << "line " << i << "\n";
  text.close();
  ASSERT_EQ(ring({"data", "prepare", "--input", path("text.txt"), "--validation-input", path("long.txt"), "--tokenizer",
                  "bytes", "--output", path("long.h5")})
                .code,
            0);
  stop_in_evaluation({"data.path=" + path("long.h5"), "train.eval_interval=1"});
  // After the last step there is no training left to resume: only the validation is missing.
  fs::remove_all(folder_ / "run");
  const std::string output =
      stop_in_evaluation({"data.path=" + path("long.h5"), "train.eval_interval=0", "train.steps=1"}, 0);
  EXPECT_EQ(output.find("stopped early"), std::string::npos) << output;
  EXPECT_NE(output.find("to sample: "), std::string::npos) << output;
}

TEST_F(SignalledRuns, ALongTaskEndsWithACheckpoint) {
  std::ofstream task(folder_ / "long.jsonl");
  for (int i = 0; i < 100000; ++i) task << R"({"text": "the last word is word)" << i << "\"}\n";
  task.close();
  stop_in_evaluation(
      {"train.eval_interval=0", "train.eval_tasks_interval=1", "train.eval_tasks=[long=" + path("long.jsonl") + "]"});
}

TEST_F(SignalledRuns, NamesThatAreNotUtf8AreRefusedBeforeTheFirstStep) {
  const std::string name = "caf\xE9";
  const auto refused = [&](const std::vector<std::string>& command, const std::string& key) {
    const Finished f = run_process(command);
    EXPECT_NE(f.code, 0) << f.output;
    for (const std::string& part : {key, std::string("UTF-8")})
      EXPECT_NE(f.output.find(part), std::string::npos) << part << " is not in: " << f.output;
    EXPECT_EQ(f.output.find("json.exception"), std::string::npos) << f.output;
  };
  refused(train("run", {"run.name=" + name}), "run.name");
  refused(train(name), "run.directory");
  refused(train("run", {"run.init_from=" + path(name)}), "run.init_from");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_FALSE(fs::exists(folder_ / name));
  std::ofstream(folder_ / "latin1.yaml") << "run: {name: " << name << "}\n";
  refused({ring_binary(), "train", path("latin1.yaml")}, "-f LATIN1");
  std::ofstream(folder_ / "utf16.yaml") << std::string("\xFF\xFEr\0u\0n\0:\0 \0{\0}\0\n\0", 18);
  refused({ring_binary(), "train", path("utf16.yaml")}, "-f UTF-16");
  ASSERT_EQ(
      run_process(train("whole", {"train.steps=1", "train.eval_interval=0", "model.positions=rope", "model.norm=rms",
                                  "model.mlp=swiglu", "model.dropout=0", "model.tied_embeddings=true"}))
          .code,
      0);
  ASSERT_EQ(ring({"export", path("whole"), "--output", path("hf")}).code, 0);
  refused({ring_binary(), "import", path("hf"), "--output", path(name)}, "--output");
  EXPECT_FALSE(fs::exists(folder_ / name));
  ASSERT_EQ(run_process(train("moved", {"train.steps=4", "train.eval_interval=0"})).code, 0);
  fs::rename(folder_ / "moved", folder_ / name);
  refused({ring_binary(), "train", path(name), "train.steps=8", "--allow-changes"}, "run.directory");
}

TEST_F(SignalledRuns, ANameThatIsTooLongIsNamedWithTheReason) {
  const Finished refused = ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output",
                                 path(std::string(300, 'x') + ".h5")});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("xxx.h5: File name too long"), std::string::npos) << refused.output;
  EXPECT_EQ(refused.output.find("filesystem error"), std::string::npos) << refused.output;
}

}  // namespace
}  // namespace ring::test
