// Small files of a run that were changed, damaged, deleted or copied alone. The checkpoint's contents hold, and files
// that contradict it are named.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "checkpoint/files.h"
#include "core/check.h"
#include "engine/run_directory.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class DamagedRuns : public Runs {
 protected:
  void SetUp() override {
    Runs::SetUp();
    ASSERT_EQ(run_process(short_train()).code, 0);
  }
  std::vector<std::string> short_train(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), "train.steps=10");
    return train("run", more);
  }
  std::string checkpoint() const { return path("run/checkpoints/step-000000010"); }
  std::string config() const { return path("run/config.yaml"); }
  std::string restoring() const { return "ringmaster config show " + checkpoint() + " > " + config(); }
  void edit(const std::string& from, const std::string& to) const {
    std::string text = read_text(config());
    ASSERT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(config()) << text;
  }
  static void expect_parts(const Finished& done, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(done.code, code) << done.output;
    for (const std::string& part : parts)
      EXPECT_NE(done.output.find(part), std::string::npos) << "'" << part << "' is not in: " << done.output;
  }
  // Returns the line with the loss, without warnings.
  std::string loss_of(const std::string& run) const {
    const std::string output = ring({"eval", run}).output;
    const std::size_t at = output.find("loss ");
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? output : output.substr(at);
  }
};

TEST_F(DamagedRuns, AChangedConfigIsNamedAndHasNoEffect) {
  const std::string loss = loss_of(path("run"));
  const std::string change = "model.norm_eps: 1e-5 -> 0.5";
  edit("norm_eps: 1e-5", "norm_eps: 0.5");
  expect_parts(ring({"eval", path("run")}), 0, {config(), checkpoint(), change, restoring()});
  EXPECT_EQ(loss_of(path("run")), loss);
  expect_parts(ring({"generate", path("run"), "--max-tokens", "2"}), 0, {change});
  expect_parts(ring({"train", path("run")}), 1, {config(), checkpoint(), change, restoring(), "--allow-changes"});
  // The command's own settings equal those of the checkpoint, and the run rewrites config.yaml.
  EXPECT_EQ(run_process(short_train()).code, 0);
  expect_parts(ring({"train", path("run")}), 0, {"nothing left to do"});
  EXPECT_EQ(read_text(config()).find("norm_eps: 0.5"), std::string::npos);
}

// Opening a pipe would wait for a process at its other end.
TEST_F(DamagedRuns, PipesInPlaceOfFilesAreNamed) {
  for (const char* name : {"lock", "metrics.jsonl", "log.txt", "config.yaml"}) {
    const std::string file = path(str("run/", name));
    fs::rename(file, file + ".kept");
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    expect_parts(run_process(train("run", {"train.steps=12", "--allow-changes"})), 1, {file, "named pipe"});
    fs::remove(file);
    fs::rename(file + ".kept", file);
  }
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  fs::remove(path("run/lock"));
  fs::rename(path("pipe"), path("run/lock"));
  expect_parts(ring({"runs", path("")}), 0, {"run"});
}

// The system refuses to list the folder. It is a link to itself, since root may read any folder.
TEST_F(DamagedRuns, AReportNamesFoldersThatCannotBeRead) {
  fs::create_directory_symlink("loop", path("loop"));
  expect_parts(ring({"report", path("run"), path("loop"), "--output", path("r.html")}), 0,
               {path("loop"), "symbolic links", "The report leaves it out", "2 runs"});
  const std::string page = read_text(path("r.html"));
  for (const char* part : {"loop</td>", "unreadable", "Too many levels of symbolic links"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  expect_parts(ring({"report", path("run"), path("none"), "--output", path("r.html")}), 1, {path("none")});
}

TEST_F(DamagedRuns, TheNamedCommandRestoresTheConfig) {
  edit("lr: 0.001", "lr: 0.005");
  expect_parts(ring({"train", path("run")}), 1, {"optimizer.lr: 0.001 -> 0.005"});
  const Finished shown = ring({"config", "show", checkpoint()});
  ASSERT_EQ(shown.code, 0) << shown.output;
  std::ofstream(config()) << shown.output;
  const Finished evaluated = ring({"eval", path("run")});
  EXPECT_EQ(evaluated.output.find("was changed"), std::string::npos) << evaluated.output;
  expect_parts(ring({"train", path("run")}), 0, {"nothing left to do"});
  edit("lr: 0.001", "lr: 0.005");
  expect_parts(ring({"train", path("run"), "--allow-changes"}), 0, {"changed settings", "optimizer.lr"});
}

TEST_F(DamagedRuns, DifferentShapesAreRefusedAtOnce) {
  for (const char* change : {"model.width=64", "model.layers=3"})
    for (const bool allow : {false, true}) {
      std::vector<std::string> more = {change};
      if (allow) more.emplace_back("--allow-changes");
      const Finished refused = run_process(short_train(more));
      const std::string was =
          change == std::string("model.width=64") ? "model.width: 32 -> 64" : "model.layers: 2 -> 3";
      expect_parts(refused, 1, {checkpoint(), "shapes of this model", was, "run.directory=NAME"});
      EXPECT_EQ(refused.output.find("--allow-changes"), std::string::npos) << refused.output;
      EXPECT_EQ(refused.output.find("attention.wk.weight"), std::string::npos) << refused.output;
    }
  // A different number of heads is also refused, although all shapes are equal.
  const Finished heads = run_process(short_train({"model.heads=1", "model.kv_heads=1", "--allow-changes"}));
  expect_parts(heads, 1, {checkpoint(), "heads of this model", "model.heads: 4 -> 1"});
  // If all shapes are equal, --allow-changes is offered.
  expect_parts(run_process(short_train({"model.dropout=0.2"})), 1, {"pass --allow-changes"});
}

TEST_F(DamagedRuns, ChangedSettingsAreReportedOnceForTwoCheckpoints) {
  for (const auto& entry : fs::directory_iterator(checkpoint()))
    if (entry.path().filename().string().starts_with("shard")) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(fs::file_size(entry.path()) - 1));
      file.put('?');
    }
  const Finished f = ring({"train", path("run"), "train.steps=12", "optimizer.lr=0.005", "--allow-changes"});
  expect_parts(f, 0, {"resuming from step 5", "changed settings", "optimizer.lr: 0.001 -> 0.005"});
  EXPECT_EQ(f.output.find("changed settings"), f.output.rfind("changed settings")) << f.output;
}

TEST_F(DamagedRuns, ChangedInitialWeightsAreRefused) {
  expect_parts(
      ring({"train", path("run"), "train.steps=12", "--allow-changes", "run.init_from=runs/other"}), 1,
      {"run.init_from: runs/other has no effect", "started from random weights", "set a different run.directory"});
  expect_parts(ring({"train", path("run"), "train.steps=12", "optimizer.lr=0.005", "run.init_from=runs/other"}), 1,
               {"run.init_from: runs/other has no effect"});
}

TEST_F(DamagedRuns, AFolderThatCannotBeWrittenIsNamed) {
  fs::create_directory(path("locked"));
  fs::permissions(path("locked"), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "root may write anywhere, and cannot be somebody else here";
  const std::string said = error_of([&] { RunDirectory(path("locked/run")).lock(); });
  ASSERT_EQ(::seteuid(user), 0);
  EXPECT_TRUE(contains(said, path("locked/run") + ": Permission denied")) << said;
}

TEST_F(DamagedRuns, ChangedSettingsAreSavedOnlyIfAStepFollows) {
  const std::string before = read_text(config()), change = "optimizer.lr=0.005";
  for (const char* end : {"train.steps=10", "train.minutes=0.000001"})
    expect_parts(ring({"train", path("run"), "--allow-changes", change, end}), 0, {"settings are not saved"});
  EXPECT_EQ(read_text(config()), before);
  expect_parts(ring({"train", path("run"), "--allow-changes", change, "train.steps=11"}), 0, {"optimizer.lr: 0.001"});
  EXPECT_NE(read_text(config()).find("lr: 0.005"), std::string::npos);
}

// `config show` accepts a run like `attention show` and `train`, also before the first checkpoint and without
// config.yaml.
TEST_F(DamagedRuns, ConfigShowAcceptsARun) {
  const std::vector<std::string> show = {"config", "show", path("run"), "train.steps=77"};
  expect_parts(ring(show), 0, {"steps: 77\n", "lr: 0.001\n"});
  edit("lr: 0.001", "lr: 0.005");
  expect_parts(ring(show), 0, {"lr: 0.005\n", restoring()});
  std::filesystem::rename(path("run/checkpoints"), path("elsewhere"));
  expect_parts(ring(show), 0, {"lr: 0.005\n"});
  expect_parts(ring({"attention", "show", path("run")}), 0, {"dense"});
  std::filesystem::rename(path("elsewhere"), path("run/checkpoints"));
  std::filesystem::remove(config());
  expect_parts(ring(show), 0, {"lr: 0.001\n"});
  expect_parts(ring({"attention", "show", checkpoint()}), 0, {"dense"});
  expect_parts(ring({"config", "show", path("")}), 1, {path("")});
}

TEST_F(DamagedRuns, ARunWithoutACheckpointStartsOverWithAWarning) {
  const std::string said = path("run") + " has records of 10 steps";
  std::filesystem::remove_all(path("run/checkpoints"));
  expect_parts(run_process(short_train()), 0, {said, "no checkpoint", "checkpoint.interval (now 5)"});
  EXPECT_NE(read_text(path("run/log.txt")).find(said), std::string::npos);
  EXPECT_EQ(losses("run").size(), 10u);
  std::filesystem::remove_all(path("run/checkpoints"));
  const Finished fresh = run_process(short_train({"--fresh"}));
  expect_parts(fresh, 0, {});
  EXPECT_EQ(fresh.output.find(said), std::string::npos) << fresh.output;
}

TEST_F(DamagedRuns, AMissingRunIsRefusedWithTheRunsThatExist) {
  const std::string none = path("runn"), beside = "Runs in its folder: " + path("run") + "\n";
  const std::vector<std::vector<std::string>> commands = {{"eval", none},
                                                          {"generate", none},
                                                          {"export", none, "--output", path("published")},
                                                          {"report", none},
                                                          {"watch", none}};
  for (const std::vector<std::string>& command : commands)
    expect_parts(ring(command), 1, {none + " does not exist", "Give a run", beside});
  for (const std::vector<std::string>& command : {std::vector<std::string>{"attention", "show", none}, {"train", none}})
    expect_parts(ring(command), 1, {none + " does not exist", "Give settings, such as", beside});
  const std::string checkpoint = path("run/checkpoints/step-000000007");
  expect_parts(ring({"eval", checkpoint}), 1, {checkpoint + " does not exist", "inside the run " + path("run") + "\n"});
  expect_parts(ring({"eval", path("text.txt") + "/none"}), 1, {"none does not exist", "ringmaster runs FOLDER"});
  expect_parts(ring({"eval", path("text.txt")}), 1, {"not a run", "ringmaster runs FOLDER"});
}

TEST_F(DamagedRuns, ChangesOfFreeKeysAreNamedOnlyIfMadeInTheFile) {
  edit("validation_batches: 0", "validation_batches: 1");
  expect_parts(ring({"train", path("run")}), 0, {config(), "was changed after", "data.validation_batches: 0 -> 1"});
  const Finished given = ring({"train", path("run"), "data.validation_batches=2"});
  expect_parts(given, 0, {"nothing left to do"});
  EXPECT_EQ(given.output.find("was changed after"), std::string::npos) << given.output;
}

TEST_F(DamagedRuns, ADeletedConfigIsReportedAndDoesNotRestartTheRun) {
  const std::string loss = loss_of(path("run"));
  std::filesystem::remove(config());
  expect_parts(ring({"eval", path("run")}), 0, {"no config.yaml", checkpoint()});
  EXPECT_EQ(loss_of(path("run")), loss);
  expect_parts(run_process(short_train({"optimizer.lr=2e-3"})), 1, {"no config.yaml", "optimizer.lr: 0.001 -> 0.002"});
  EXPECT_FALSE(std::filesystem::exists(config()));
  expect_parts(ring({"train", path("run")}), 0, {"no config.yaml", checkpoint(), "nothing left to do"});
  EXPECT_TRUE(std::filesystem::exists(config()));
  EXPECT_EQ(losses("run").size(), 10u);
}

TEST_F(DamagedRuns, AConfigThatCannotBeReadIsNamedWithTheRemedy) {
  const auto expect_named = [&] {
    for (const char* command : {"train", "eval", "generate"})
      expect_parts(ring({command, path("run")}), 1, {config(), restoring()});
    expect_parts(run_process(short_train()), 1, {config(), restoring()});
  };
  for (const char* text : {"][ not: yaml", "model: {width: none}", "\x01\x02\xff", "unknown_key: 1"}) {
    std::ofstream(config()) << text;
    expect_named();
  }
  std::filesystem::remove(config());
  ASSERT_EQ(::mkfifo(config().c_str(), 0600), 0);
  expect_named();
}

// An allowed change holds, although the newest checkpoint was saved before the change.
TEST_F(DamagedRuns, AllowedChangesSurviveAKillBeforeTheNextCheckpoint) {
  const std::vector<std::string> changed = {"train.steps=100000", "optimizer.lr=2e-3", "checkpoint.interval=0",
                                            "train.eval_interval=0"};
  std::vector<std::string> allowed = changed;
  allowed.push_back("--allow-changes");
  {
    Process process(train("run", allowed));
    while (records("run") < 20 && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    process.signal(SIGKILL);
    ASSERT_EQ(process.wait().code, -SIGKILL);
  }
  ASSERT_TRUE(std::filesystem::exists(checkpoint()));
  const auto resume_and_kill = [&](const std::vector<std::string>& command) {
    std::filesystem::remove(path("run/metrics.jsonl"));
    Process process(command);
    while (records("run") < 5 && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    process.signal(SIGKILL);
    return process.wait();
  };
  const Finished evaluated = ring({"eval", path("run")});  // the settings are right, and the checkpoint is older
  expect_parts(evaluated, 0, {"was saved before", "0.001 -> 0.002"});
  EXPECT_EQ(evaluated.output.find("To restore"), std::string::npos) << evaluated.output;
  expect_parts(resume_and_kill({ring_binary(), "train", path("run")}), -SIGKILL,
               {"changed settings", "0.001 -> 0.002"});
  expect_parts(resume_and_kill(train("run", changed)), -SIGKILL, {"resuming from step 10"});
  expect_parts(ring({"train", path("run"), "optimizer.lr=3e-3"}), 1, {"optimizer.lr: 0.001 -> 0.003"});
  edit("lr: 0.002", "lr: 0.004");  // a change that was not allowed
  expect_parts(ring({"train", path("run")}), 1, {"optimizer.lr: 0.001 -> 0.004", "train.steps: 10 -> 100000"});
}

TEST_F(DamagedRuns, ADifferentTokenizerIsNamed) {
  std::ofstream(folder_ / "letters.txt") << "abcdefghij";
  const std::string file = path("run/tokenizer.rmt");
  const std::string whole = read_text(file);
  const std::string letters = path("letters.rmt");
  ASSERT_EQ(ring({"tokenizer", "train", "--input", path("letters.txt"), "--kind", "chars", "--output", letters}).code,
            0);
  fs::copy_file(letters, file, fs::copy_options::overwrite_existing);
  for (const char* command : {"eval", "generate"})
    expect_parts(ring({command, path("run")}), 1, {file, "holds a different tokenizer", checkpoint()});
  for (const std::string& spec : {path("run"), file})
    expect_parts(ring({"tokenizer", "encode", spec, "abc"}), 1, {file, "holds a different tokenizer"});
  std::ofstream(file) << "garbage";
  expect_parts(ring({"generate", path("run")}), 1, {file, "ringmaster train"});
  expect_parts(ring({"train", path("run")}), 0, {file, "nothing left to do"});
  EXPECT_EQ(read_text(file), whole);
  expect_parts(ring({"tokenizer", "encode", path("run"), "abc"}), 0, {"97 98 99"});
  std::filesystem::remove(file);
  expect_parts(ring({"generate", path("run")}), 1, {file});
}

TEST_F(DamagedRuns, ADifferentCorpusUnderTheSameNameIsEvaluatedOnlyIfGiven) {
  std::ofstream(folder_ / "text.txt", std::ios::app) << "and some more\n";
  ASSERT_EQ(ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("a.h5"),
                  "--validation-fraction", "0.1", "--force"})
                .code,
            0);
  expect_parts(ring({"eval", path("run")}), 1, {"was trained on different data", "--data"});
  expect_parts(ring({"eval", path("run"), "--data", path("a.h5")}), 0, {"loss "});
}

TEST_F(DamagedRuns, ACheckpointThatWasCopiedAloneWorks) {
  const std::string lone = path("lone");
  std::filesystem::copy(checkpoint(), lone, std::filesystem::copy_options::recursive);
  const std::string loss = loss_of(path("run"));
  expect_parts(ring({"checkpoint", "verify", lone}), 0, {"ok"});
  expect_parts(ring({"generate", lone}), 1, {"tokenizer.rmt", lone});
  expect_parts(run_process(train("second", {"run.init_from=" + lone, "train.steps=2"})), 0, {"weights from " + lone});
  std::filesystem::copy(path("run/tokenizer.rmt"), lone + "/tokenizer.rmt");
  EXPECT_EQ(loss_of(lone), loss);
}

TEST_F(DamagedRuns, ForeignFilesAmongTheCheckpointsDoNotPreventAStart) {
  for (const char* run : {"new", "run"}) {
    const std::filesystem::path checkpoints = folder_ / run / "checkpoints";
    std::filesystem::create_directories(checkpoints / "step-000000007");
    std::ofstream(checkpoints / "step-000000007" / "notes.txt") << "mine";
    std::ofstream(checkpoints / "step-000000008") << "mine";
    std::filesystem::create_symlink("step-000000009", checkpoints / "step-000000009");
    std::filesystem::create_symlink("nowhere", checkpoints / "\xff\xfe");
    expect_parts(run_process(train(run, {"train.steps=10"})), 0, {});
    EXPECT_EQ(losses(run).size(), 10u);
    EXPECT_EQ(read_text(checkpoints / "step-000000007" / "notes.txt"), "mine");
    expect_parts(run_process(train(run, {"train.steps=5", "--fresh"})), 0, {});
    EXPECT_EQ(read_text(checkpoints / "step-000000007" / "notes.txt"), "mine");
  }
}

// The model would take days to initialize: errors must come before it is built.
TEST_F(DamagedRuns, ErrorsComeBeforeTheModelIsBuilt) {
  const std::vector<std::string> huge = {"model.width=16384", "model.layers=600", "model.heads=128"};
  const auto expect_refused = [&](std::vector<std::string> command, const std::vector<std::string>& parts) {
    command.insert(command.end(), huge.begin(), huge.end());
    const auto before = std::chrono::steady_clock::now();
    expect_parts(run_process(command), 1, parts);
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(100));
  };
  expect_refused(train("run"), {"model.width: 32 -> 16384", "shapes of this model"});
  expect_refused(train("none", {"data.path=" + path("missing.h5")}), {"missing.h5"});
  expect_refused(train("none"), {"cannot fit into memory", "weights 7", "gradients 7", "optimizer states 1",
                                 "available: ", "model.layers (600)", "model.width (16384)", "machines"});
  EXPECT_FALSE(std::filesystem::exists(path("none")));
  const std::size_t before = records("run");
  Process process(train("run", {"train.steps=100000", "--allow-changes"}));
  while (records("run") <= before && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  expect_refused(train("run", {"--allow-changes"}), {"another process is training"});
}

TEST_F(DamagedRuns, ALimitOfTheShellIsRespected) {
  std::string command = "ulimit -v 3000000; exec";
  for (const std::string& word : train("small", {"model.width=1024", "model.layers=24", "model.heads=8"}))
    command += " '" + word + "'";
  expect_parts(run_process({"/bin/sh", "-c", command}), 1, {"cannot fit into memory", "ulimit -v"});
  EXPECT_FALSE(std::filesystem::exists(path("small")));
}

}  // namespace
}  // namespace ring::test
