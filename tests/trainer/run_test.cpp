// Whole runs of the program, as a user starts them: resuming, refusing, stopping.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/files.h"
#include "core/check.h"
#include "core/philox.h"
#include "core/stream.h"
#include "kernels/tuning.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class KilledRuns : public Runs {
 protected:
  // Kills a run again and again, and compares it with an undisturbed run.
  void expect_kills_do_not_show(int max_kills, std::uint64_t steps_between, std::vector<std::string> longer) {
    longer.push_back("train.steps=400");
    ASSERT_EQ(run_process(train("whole", longer)).code, 0);
    const std::map<int, std::string> want = losses("whole");
    ASSERT_EQ(want.size(), 400u);

    int kills = 0;
    Finished last;
    for (std::uint64_t attempt = 0; attempt < 100; ++attempt) {
      Process process(train("killed", longer));
      if (kills < max_kills) {
        // Waits for a random number of steps (0: kills during the start), and then for a random moment within one step
        // or save.
        const std::size_t goal = records("killed") + random_bits({17, 0, 1}, attempt) % steps_between;
        while (records("killed") < goal && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::microseconds(random_bits({17, 0, 2}, attempt) % 8000));
        process.signal(SIGKILL);
      }
      last = process.wait();
      if (last.code == 0) break;
      ASSERT_EQ(last.code, -SIGKILL) << last.output;
      ++kills;
    }
    ASSERT_EQ(last.code, 0);
    EXPECT_EQ(kills, max_kills);
    EXPECT_EQ(losses("killed"), want);
    EXPECT_EQ(tensors("killed", "step-000000400"), tensors("whole", "step-000000400"));
  }
};

TEST_F(KilledRuns, ARunKilledTwentyTimesEqualsAnUndisturbedRun) { expect_kills_do_not_show(20, 7, {}); }

// The steps have 2, 6 and 4 sequences of 16 tokens.
TEST_F(KilledRuns, ARunKilledWhileTheBatchSizeChangesEqualsAnUndisturbedRun) {
  expect_kills_do_not_show(8, 12, {"train.batch_size=[[0, 2], [1000, 6], [8000, 4]]"});
  std::ifstream file(path("killed/metrics.jsonl"));
  std::int64_t tokens = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("group") != "train") continue;
    EXPECT_EQ(json.at("batch_size"), tokens < 1000 ? 2 : tokens < 8000 ? 6 : 4) << "after " << tokens << " tokens";
    tokens += 16 * json.at("batch_size").get<std::int64_t>();
    EXPECT_EQ(json.at("tokens"), tokens);
  }
}

TEST_F(KilledRuns, ARunWithSequencesInChunksEqualsAnUndisturbedRun) {
  expect_kills_do_not_show(4, 12, {"train.sequence_chunk=8", "train.micro_batch=1"});
}

// On a GPU in bf16: with fp32 states, with bf16 states, and replayed as a graph. Both runs share one store of tuning
// choices.
class GpuRuns : public KilledRuns {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    Runs::SetUp();
  }
  std::vector<std::string> on_gpu(std::vector<std::string> more) const {
    more.insert(more.begin(), {"run.device=cuda", "run.tuning=" + path("tuning.yaml"), "model.context=64"});
    return more;
  }
};

TEST_F(GpuRuns, KilledEqualsUndisturbed) { expect_kills_do_not_show(4, 60, on_gpu({})); }
TEST_F(GpuRuns, KilledEqualsUndisturbedWithStatesInBf16AndAGraph) {
  expect_kills_do_not_show(4, 60,
                           on_gpu({"optimizer.master=bf16", "optimizer.moments=bf16", "optimizer.gradients=bf16",
                                   "train.cuda_graph=on", "train.recompute=block"}));
}

TEST_F(GpuRuns, KilledEqualsUndisturbedWithSequencesInChunks) {
  expect_kills_do_not_show(4, 60, on_gpu({"train.sequence_chunk=16", "train.micro_batch=1"}));
}

// A GPU computes a step while the host queues the next one, which must not be counted yet.
TEST_F(GpuRuns, RecordsCountTheTokensUpToTheirStep) {
  ASSERT_EQ(run_process(train("counted", on_gpu({"train.steps=5", "train.batch_size=2"}))).code, 0);
  std::ifstream file(path("counted/metrics.jsonl"));
  std::int64_t records = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("group") != "train") continue;
    ++records;
    EXPECT_EQ(json.at("tokens"), json.at("step").get<std::int64_t>() * 2 * 64);
  }
  EXPECT_EQ(records, 5);
}

TEST_F(GpuRuns, KilledEqualsUndisturbedWithMomentsInFp8AndAGraph) {
  expect_kills_do_not_show(4, 60, on_gpu({"optimizer.moments=fp8", "train.cuda_graph=on"}));
}

TEST_F(GpuRuns, KilledEqualsUndisturbedWithAnAverageWatchedStepsAndAGraph) {
  expect_kills_do_not_show(4, 60, on_gpu({"train.ema=0.99", "train.diagnostics_interval=7", "train.cuda_graph=on"}));
}

TEST_F(GpuRuns, WatchingShowsInNothing) {
  for (const std::string graph : {"on", "off"}) {
    const std::string setting = "train.cuda_graph=" + graph;
    ASSERT_EQ(run_process(train("plain-" + graph, on_gpu({setting}))).code, 0);
    ASSERT_EQ(run_process(train("watched-" + graph, on_gpu({setting, "train.diagnostics_interval=3"}))).code, 0);
    EXPECT_EQ(losses("watched-" + graph), losses("plain-" + graph)) << graph;
    EXPECT_EQ(tensors("watched-" + graph), tensors("plain-" + graph)) << graph;
  }
}

TEST_F(GpuRuns, ResumeWithTheChoicesOfTheCheckpoint) {
  ASSERT_EQ(run_process(train("half", on_gpu({"train.steps=20"}))).code, 0);
  const std::string record = path("half/tuning.yaml"), store = path("tuning.yaml");
  const std::string before = Tuning(record).text();
  ASSERT_NE(before, "");
  fs::remove(record);
  fs::remove(store);
  ASSERT_EQ(run_process(train("half", on_gpu({"train.steps=24", "--allow-changes"}))).code, 0);
  EXPECT_EQ(Tuning(record).text(), before);
  EXPECT_FALSE(fs::exists(store)) << "something was measured again";
}

TEST_F(Runs, SchedulesThatAreProbablyMistakesAreWarnedAbout) {
  const auto output = [&](const std::string& run, const std::string& steps, const std::string& final_lr) {
    return trained(run, {"train.steps=" + steps, "schedule.warmup_steps=4", "checkpoint.interval=0",
                         "optimizer.lr=0.002", "schedule.final_lr=" + final_lr})
        .output;
  };
  const std::string odd = output("odd", "3", "0.001"), usual = output("usual", "4", "0.5");
  for (const char* part : {"schedule.warmup_steps: 4", "train.steps: 3", "schedule.final_lr: 0.001",
                           "optimizer.lr: 0.002", "2e-06", "set schedule.final_lr=0.5"})
    EXPECT_NE(odd.find(part), std::string::npos) << part << " is not in: " << odd;
  EXPECT_EQ(usual.find("schedule."), std::string::npos) << usual;
}

// Each change is logged once, with the first step that has the new number.
TEST_F(Runs, ChangesOfSchedulesByTokensAreLogged) {
  const std::vector<std::string> settings = {"model.context=256", "train.batch_size=[[0, 2], [1024, 4]]",
                                             "train.micro_batch=1", "train.eval_interval=0",
                                             "model.attention={kind: block_sparse, block: 64, rules: [{pattern: "
                                             "content, local: 1, keep: [[0, 3], [1024, 2]]}]}"};
  const auto changes = [](const std::string& output) {
    std::vector<std::string> lines;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);)
      if (line.find(" on, after ") != std::string::npos) lines.push_back(line.substr(line.find("from step ")));
    return lines;
  };
  const std::vector<std::string> first = changes(trained("run", settings, {"train.steps=4"}).output);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].starts_with("from step 3 on, after 1024 tokens: train.batch_size: 2 -> 4, model.attention"))
      << first[0];
  EXPECT_NE(first[0].find("keep: 3 -> 2"), std::string::npos) << first[0];
  const std::vector<std::string> later = changes(trained("run", settings, {"train.steps=6", "--allow-changes"}).output);
  EXPECT_TRUE(later.empty()) << later[0];
}

TEST_F(GpuRuns, RefusesWhatCannotFitBeforeAnythingIsAllocated) {
  const Finished refused =
      run_process(train("huge", on_gpu({"model.width=16384", "model.layers=200", "model.heads=128"})));
  EXPECT_EQ(refused.code, 1);
  for (const char* part : {"cannot fit into memory: weights ", "master copies ", "(memory of cuda:0)",
                           "optimizer.master, .moments, .gradients"})
    EXPECT_NE(refused.output.find(part), std::string::npos) << part << " is not in: " << refused.output;
  EXPECT_FALSE(fs::exists(folder_ / "huge"));
}

TEST_F(Runs, ARunStopsOnASignalAndResumes) {
  ASSERT_EQ(run_process(train("whole")).code, 0);
  Process process(train("stopped"));
  while (!fs::exists(folder_ / "stopped" / "metrics.jsonl") || losses("stopped").size() < 3)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  process.signal(SIGTERM);
  process.signal(SIGINT);  // so soon that it counts as the same request
  const Finished stopped = process.wait();
  ASSERT_EQ(stopped.code, 75) << stopped.output;
  EXPECT_NE(stopped.output.find("ringmaster train " + path("stopped")), std::string::npos);
  ASSERT_LT(losses("stopped").size(), 120u);
  ASSERT_EQ(ring({"train", path("stopped")}).code, 0);  // given the run instead of its settings file
  EXPECT_EQ(losses("stopped"), losses("whole"));
  EXPECT_EQ(tensors("stopped"), tensors("whole"));
}

// A signal handler on a computing thread once corrupted the heap (see StopSignal).
TEST_F(Runs, SignalsDoNotDisturbKernels) {
  for (int i = 0; i < 8; ++i) {
    const std::string run = str("signal", i);
    Process process(
        train(run, {"model.width=128", "model.context=64", "train.batch_size=12", "train.micro_batch=0",
                    "run.threads=1", "train.steps=100000", "checkpoint.interval=0", "train.eval_interval=0"}));
    while (records(run) < 2 && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * i));
    process.signal(i % 2 ? SIGINT : SIGUSR1);
    const Finished stopped = process.wait();
    EXPECT_EQ(stopped.code, 75) << stopped.output;
  }
}

TEST_F(Runs, ADamagedCheckpointIsSkipped) {
  ASSERT_EQ(run_process(train("whole")).code, 0);
  ASSERT_EQ(run_process(train("hurt")).code, 0);
  {
    std::fstream shard(folder_ / "hurt/checkpoints/step-000000120/shard-00000.h5",
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(20000);
    shard.put('\x5a');
  }
  const Finished resumed = run_process(train("hurt"));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("shard-00000.h5"), std::string::npos) << resumed.output;
  EXPECT_NE(resumed.output.find("resuming from step 115"), std::string::npos) << resumed.output;
  EXPECT_EQ(tensors("hurt"), tensors("whole"));
}

TEST_F(Runs, ResumingWithDifferentSettingsIsRefused) {
  ASSERT_EQ(run_process(train("run", {"train.steps=10"})).code, 0);
  const Finished refused = run_process(train("run", {"train.steps=12", "optimizer.lr=2e-3"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("train.steps: 10 -> 12"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("optimizer.lr: 0.001 -> 0.002"), std::string::npos) << refused.output;
  EXPECT_EQ(run_process(train("run", {"train.steps=12", "optimizer.lr=2e-3", "--allow-changes"})).code, 0);
  EXPECT_EQ(losses("run").size(), 12u);
  EXPECT_EQ(run_process(train("run", {"train.steps=4", "--fresh"})).code, 0);
  EXPECT_EQ(losses("run").size(), 4u);
}

TEST_F(Runs, DifferentThreadsAndLayoutsGiveOneWarning) {
  ASSERT_EQ(run_process(train("run", {"train.steps=3"})).code, 0);
  const Finished resumed = run_process(train("run", {"train.steps=3", "run.threads=1", "parallel.zero=1"}));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("run.threads: 2 -> 1, parallel.zero: 0 -> 1"), std::string::npos) << resumed.output;
  EXPECT_EQ(resumed.output.find("Sums are rounded"), resumed.output.rfind("Sums are rounded")) << resumed.output;
}

TEST_F(Runs, AFolderOfRunsIsRefusedWithTheNamesOfItsRuns) {
  for (const char* name : {"runs/a", "runs/b"}) ASSERT_EQ(run_process(train(name, {"train.steps=2"})).code, 0);
  const std::string named = "Name one of them: " + path("runs/a") + ", " + path("runs/b") + "\n";
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"train"}, {"eval"}, {"generate"}, {"config", "show"}, {"attention", "show"}}) {
    std::vector<std::string> words = command;
    words.push_back(path("runs"));
    const Finished f = ring(words);
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(f.output.ends_with(named)) << f.output;
  }
  const std::string checkpoint = path("runs/a/checkpoints/step-000000002");
  const Finished f = ring({"train", checkpoint});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("ringmaster train " + path("runs/a")), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("run.init_from=" + checkpoint), std::string::npos) << f.output;
  std::ofstream(folder_ / "other.h5") << "\x89HDF\r\n\x1a\n and more";
  for (const char* name : {"a.h5", "other.h5"}) {
    const Finished corpus = ring({"train", path(name)});
    EXPECT_EQ(corpus.code, 1);
    for (const std::string& part : {path(name), std::string("got a corpus (HDF5)")})
      EXPECT_NE(corpus.output.find(part), std::string::npos) << corpus.output;
  }
}

TEST_F(Runs, WithoutACheckpointNewSettingsApply) {
  ASSERT_EQ(run_process(train("run", {"train.steps=3"})).code, 0);
  for (const auto& entry : fs::directory_iterator(folder_ / "run" / "checkpoints")) fs::remove_all(entry.path());
  const Finished again = run_process(train("run", {"train.steps=4", "optimizer.lr=2e-3"}));
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(losses("run").size(), 4u);
}

TEST_F(Runs, DifferentDataUnderTheSameNameIsRefused) {
  ASSERT_EQ(run_process(train("run", {"train.steps=5"})).code, 0);
  std::ofstream(folder_ / "text.txt", std::ios::app) << "and some more\n";
  ASSERT_EQ(ring({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("a.h5"),
                  "--force"})
                .code,
            0);
  const Finished refused = run_process(train("run", {"train.steps=5"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("was trained on different data"), std::string::npos) << refused.output;
}

TEST_F(Runs, AChangedFileOfBlocksIsRefused) {
  const auto blocks = [&](const char* text) { std::ofstream(folder_ / "own.blocks") << text; };
  const std::string attention =
      "model.attention={kind: block_sparse, block: 64, rules: [{pattern: file, file: " + path("own.blocks") + "}]}";
  const std::vector<std::string> settings = {"train.steps=3", "model.context=128", attention};
  blocks("0: 0\n1: 0 1\n");
  ASSERT_EQ(run_process(train("run", settings)).code, 0);
  EXPECT_EQ(run_process(train("run", settings)).code, 0);
  blocks("0: 0\n1: 1\n");
  const Finished refused = run_process(train("run", settings));
  EXPECT_EQ(refused.code, 1);
  const std::string named = "files of blocks (" + path("own.blocks") + ")";
  EXPECT_NE(refused.output.find(named), std::string::npos) << refused.output;
  std::vector<std::string> allowing = settings;
  allowing.insert(allowing.end(), {"train.steps=4", "--allow-changes"});
  const Finished allowed = run_process(train("run", allowing));
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  EXPECT_NE(allowed.output.find(named), std::string::npos) << allowed.output;
  allowing.pop_back();  // the new checkpoint was trained with the new file
  EXPECT_EQ(run_process(train("run", allowing)).code, 0);
}

TEST_F(Runs, SwappedFilesOfBlocksAreRefused) {
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder_ / name) << text; };
  const auto attention = [&](const char* name) {
    return "{kind: block_sparse, block: 64, rules: [{pattern: file, file: " + path(name) + "}]}";
  };
  const std::vector<std::string> settings = {
      "train.steps=3", "model.layers=2", "model.context=128", "model.attention=" + attention("a.blocks"),
      "model.attention_layers=[{layers: 1, attention: " + attention("b.blocks") + "}]"};
  const char *const both = "0: 0\n1: 0 1\n", *const own = "0: 0\n1: 1\n";
  write("a.blocks", both), write("b.blocks", own);
  ASSERT_EQ(run_process(train("run", settings)).code, 0);
  write("a.blocks", own), write("b.blocks", both);
  const Finished refused = run_process(train("run", settings));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("files of blocks ("), std::string::npos) << refused.output;
}

TEST_F(Runs, ARunStartsFromTheWeightsOfAnotherRun) {
  ASSERT_EQ(run_process(train("first", {"train.steps=40"})).code, 0);
  // The context is longer. No weight depends on the context with rotary positions, but these positions are learned, so
  // that the run must refuse.
  const Finished longer =
      run_process(train("longer", {"run.init_from=" + path("first"), "model.context=24", "train.steps=2"}));
  EXPECT_EQ(longer.code, 1);
  EXPECT_NE(longer.output.find("embedding.positions.weight"), std::string::npos) << longer.output;
  ASSERT_EQ(run_process(train("second", {"run.init_from=" + path("first"), "train.steps=2", "model.dropout=0"})).code,
            0);
  // Other heads, or other settings that the shapes of weights do not show.
  const auto other = [&](const std::string& setting) {
    return run_process(train("other", {"run.init_from=" + path("first"), "train.steps=1", setting, "--fresh"}));
  };
  const Finished heads = other("model.heads=2");
  EXPECT_EQ(heads.code, 1);
  EXPECT_NE(heads.output.find("run.init_from: the weights in "), std::string::npos) << heads.output;
  const Finished eps = other("model.norm_eps=1e-3");
  EXPECT_EQ(eps.code, 0);
  EXPECT_NE(eps.output.find("model.norm_eps: 1e-5 -> 0.001"), std::string::npos) << eps.output;
  EXPECT_EQ(other("model.dropout=0.1").output.find("trained with other settings"), std::string::npos);
  fs::rename(folder_ / "first", folder_ / "moved");
  const Finished again =
      run_process(train("second", {"run.init_from=" + path("first"), "train.steps=2", "model.dropout=0"}));
  EXPECT_EQ(again.code, 0) << again.output;  // a run with a checkpoint no longer needs the run that it started from
  EXPECT_EQ(run_process(train("third", {"run.init_from=" + path("first"), "train.steps=2"})).code, 1);
  EXPECT_FALSE(fs::exists(folder_ / "third"));
  fs::rename(folder_ / "moved", folder_ / "first");
  const auto first = [&](const std::string& run, int step) { return std::stod(losses(run).at(step)); };
  EXPECT_LT(first("second", 1), first("first", 1) - 0.5);  // the second run starts where the first one ended
}

TEST_F(Runs, EveryKindOfAttentionTrainsAndGenerates) {
  const std::vector<std::vector<std::string>> kinds = {
      {"model.attention={kind: window, window: 8, sinks: 1}"},
      {"model.attention={kind: dilated, segments: [8, 64], rates: [1, 3]}"},
      {"model.attention={kind: block_sparse, block: 64, rules: [{pattern: random, density: 0.5}]}"},
      {"model.attention={kind: dilated, segments: [8, 128], rates: [1, 4], dedup: true}",
       "model.attention_layers=[{layers: every 2 from 1, attention: {kind: window, window: 20}}]"}};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    std::vector<std::string> settings = kinds[i];
    for (const char* more : {"model.context=150", "model.positions=rope", "train.steps=40", "train.eval_interval=0"})
      settings.push_back(more);
    const std::string name = "kind" + std::to_string(i);
    const Finished trained = run_process(train(name, settings));
    ASSERT_EQ(trained.code, 0) << trained.output;
    EXPECT_LT(std::stod(losses(name).at(40)), std::stod(losses(name).at(1)) - 1) << settings[0];
    const Finished written = ring({"generate", path(name), "--prompt", "line", "--max-tokens", "200"});
    EXPECT_EQ(written.code, 0) << written.output;
  }
}

TEST_F(Runs, ATrainedModelSwitchesItsAttention) {
  const std::string dense = "model.positions=rope", from = "run.init_from=" + path("first");
  ASSERT_EQ(run_process(train("first", {dense, "train.steps=40"})).code, 0);
  const std::vector<std::string> switched = {dense, from, "model.context=64", "train.steps=2",
                                             "model.attention={kind: dilated, segments: [16, 64], rates: [1, 2]}"};
  const Finished second = run_process(train("second", switched));
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_LT(std::stod(losses("second").at(1)), std::stod(losses("first").at(1)) - 0.5);
  std::vector<std::string> other = switched;
  other.back() = "model.attention={kind: dilated, segments: [16, 64], rates: [1, 4]}";
  const Finished refused = run_process(train("second", other));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("model.attention.rates: [1, 2] -> [1, 4]"), std::string::npos) << refused.output;
  other.back() = switched.back();
  other.push_back("model.attention_layers=[{layers: 0, attention: {kind: dense}}]");
  const Finished layers = run_process(train("second", other));
  EXPECT_EQ(layers.code, 1);
  EXPECT_NE(layers.output.find("model.attention_layers[0].layers: (absent) -> "), std::string::npos) << layers.output;
}

TEST_F(Runs, TensorsThatAreNotFiniteAreNamed) {
  const Finished stopped =
      run_process(train("nan", {"optimizer.lr=1e30", "optimizer.clip=0", "schedule.warmup_steps=0"}));
  EXPECT_EQ(stopped.code, 1);
  for (const char* part : {"training stopped: loss", "at step ", "samples ", "tensor that is not finite: "})
    EXPECT_NE(stopped.output.find(part), std::string::npos) << part << " not in: " << stopped.output;
  EXPECT_EQ(stopped.output.find("not finite: none"), std::string::npos) << stopped.output;
}

TEST_F(Runs, StepsBeforeADivergenceAreRecorded) {
  const Finished stopped = run_process(
      train("nan", {"optimizer.lr=1e30", "optimizer.clip=0", "train.log_interval=100", "schedule.warmup_steps=0"}));
  ASSERT_EQ(stopped.code, 1) << stopped.output;
  const std::map<int, std::string> all = losses("nan");
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.begin()->first, 1);
  EXPECT_EQ(all.rbegin()->first, static_cast<int>(all.size())) << "a step is missing";
  EXPECT_NE(stopped.output.find(" at step " + std::to_string(all.size()) + ","), std::string::npos) << stopped.output;
  for (const auto& [step, loss] : all)  // "LOSS NORM"
    EXPECT_EQ(loss.find("null") != std::string::npos, step == all.rbegin()->first) << step << ": " << loss;
}

TEST_F(Runs, ATimeLimitEndsTheRunWithACompleteSchedule) {
  const Finished timed = run_process(train("timed", {"train.steps=0", "train.minutes=0.02"}));
  ASSERT_EQ(timed.code, 0) << timed.output;
  EXPECT_NE(timed.output.find("train.minutes have passed"), std::string::npos) << timed.output;
  const std::size_t steps = losses("timed").size();
  ASSERT_GT(steps, 5u);
  std::ifstream file(folder_ / "timed" / "metrics.jsonl");
  double rate = 1;
  for (std::string line; std::getline(file, line);)
    if (const auto json = nlohmann::json::parse(line); json.at("group") == "train") rate = json.at("lr");
  EXPECT_LT(rate, 0.8e-3) << "of 1e-3: it decays by the clock, however unevenly a busy machine paces the steps";
  const Finished again = run_process(train("timed", {"train.steps=0", "train.minutes=0.03"}));  // a key that may change
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_GT(losses("timed").size(), steps);
  EXPECT_EQ(run_process(train("none", {"train.steps=0"})).code, 1);
  EXPECT_EQ(run_process(train("both", {"train.tokens=1000"})).code, 1);
}

TEST_F(Runs, ADirectoryAllowsOneTrainingProcess) {
  Process process(train("run", {"train.steps=100000"}));
  while (!fs::exists(folder_ / "run" / "metrics.jsonl")) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const Finished second = run_process(train("run", {"train.steps=100000"}));
  EXPECT_EQ(second.code, 1);
  const std::string holder = str("(process ", process.pid(), " on ");
  EXPECT_NE(second.output.find(holder), std::string::npos) << second.output;
}

TEST_F(Runs, ATrainedRunIsEvaluatedAndGeneratesText) {
  ASSERT_EQ(run_process(train("run")).code, 0);
  const Finished eval = ring({"eval", path("run"), "--json"});
  ASSERT_EQ(eval.code, 0) << eval.output;
  const auto json = nlohmann::json::parse(eval.output);
  const double loss = json.at("loss");
  EXPECT_GT(loss, 0);
  EXPECT_LT(loss, std::log(257.0));
  EXPECT_NEAR(json.at("perplexity").get<double>(), std::exp(loss), 1e-6 * std::exp(loss));
  EXPECT_NEAR(json.at("bits_per_byte").get<double>(), loss / std::log(2.0), 0.01 * loss);  // one token is one byte
  const std::vector<std::string> sample = {"generate",     path("run"), "--prompt", "line 1",
                                           "--max-tokens", "30",        "--seed",   "5"};
  const Finished first = ring(sample);
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(first.output.substr(0, 6), "line 1");
  EXPECT_EQ(ring(sample).output, first.output);
  EXPECT_EQ(ring({"eval", path("text.txt")}).code, 1);
  EXPECT_NE(ring({"generate", path("nowhere")}).output.find("Give a run"), std::string::npos);
}

TEST_F(Runs, BadInputIsRefusedBeforeAnythingIsWritten) {
  const Finished unknown = run_process(train("bad", {"optimizer.lrr=1"}));
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.output.find("optimizer.lr"), std::string::npos) << unknown.output;
  EXPECT_EQ(run_process(train("bad", {"data.path=" + path("missing.h5")})).code, 1);
  EXPECT_EQ(run_process(train("bad", {"model.vocab_size=100"})).code, 1);
  EXPECT_EQ(run_process(train("bad", {"model.context=100000"})).code, 1);
  const Finished no_gpu = run_process(train("bad", {"run.device=cuda"}), {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(no_gpu.code, 1);
  EXPECT_NE(no_gpu.output.find("run.device=cpu"), std::string::npos) << no_gpu.output;
  EXPECT_FALSE(fs::exists(folder_ / "bad"));
}

// Errors end with an alternative that does not need the missing resource.
TEST_F(Runs, TooManyThreadsAreRefusedWithARemedy) {
  std::string command = "ulimit -v 3000000; exec";
  for (const std::string& word : train("bad", {"run.threads=4000"})) command += " '" + word + "'";
  const Finished f = run_process({"/bin/sh", "-c", command});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.output.find("cannot start 4000 threads"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("run.threads, --threads or RINGMASTER_THREADS"), std::string::npos) << f.output;
}

TEST_F(Runs, SettingsThatNoRunWroteAreNotReplaced) {
  const std::string own = "# my notes\nrun: {seed: 3}\n";
  fs::create_directories(folder_ / "mine");
  std::ofstream(folder_ / "mine/config.yaml") << own;
  for (const char* more : {"train.steps=1", "--fresh"}) {
    const Finished f = run_process(train("mine", {"train.steps=1", more}));
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.output.find("mine/config.yaml: no run wrote"), std::string::npos) << f.output;
  }
  EXPECT_EQ(read_text(folder_ / "mine/config.yaml"), own);
  fs::rename(folder_ / "mine/config.yaml", folder_ / "mine/metrics.jsonl");
  EXPECT_EQ(run_process(train("mine", {"train.steps=1"})).code, 1);
  EXPECT_EQ(read_text(folder_ / "mine/metrics.jsonl"), own);
  ASSERT_EQ(run_process(train("run", {"train.steps=1"})).code, 0);
  EXPECT_EQ(run_process(train("run", {"train.steps=1", "--fresh"})).code, 0);
}

TEST_F(Runs, ANameOutsideTheFolderOfRunsIsRefused) {
  for (const char* name : {"../x", "a/../../x", "/tmp/x", "..", ".", "./"}) {
    const Finished f = run_process(train("bad", {std::string("run.name=") + name}));
    EXPECT_EQ(f.code, 1) << name;
    EXPECT_NE(f.output.find("a name below runs/"), std::string::npos) << f.output;
  }
  EXPECT_FALSE(fs::exists(folder_ / "bad"));
}

// Several processes over Gloo.
class DistRuns : public Runs {
 protected:
  Finished launch(int processes, const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> command = {ring_binary(), "launch", "--nproc-per-node", std::to_string(processes), "--"};
    more.insert(more.begin(), {"train.steps=30", "run.threads=1", "train.micro_batch=1", "train.bucket_bytes=4096"});
    const std::vector<std::string> train_command = train(run, more);
    command.insert(command.end(), train_command.begin() + 1, train_command.end());
    return run_process(command);
  }
  std::map<int, double> numbers(const std::string& run) const {
    std::map<int, double> out;
    for (const auto& [step, text] : losses(run)) out[step] = std::stod(text);
    return out;
  }
};

TEST_F(DistRuns, AnyNumberOfProcessesReachesTheSameLosses) {
  for (int n : {1, 2, 4}) {
    const Finished f = launch(n, str("dp", n));
    ASSERT_EQ(f.code, 0) << f.output;
  }
  const std::map<int, double> one = numbers("dp1");
  ASSERT_EQ(one.size(), 30u);
  for (const char* run : {"dp2", "dp4"}) {
    const std::map<int, double> many = numbers(run);
    ASSERT_EQ(many.size(), 30u);
    for (const auto& [step, loss] : one) EXPECT_NEAR(many.at(step), loss, 1e-5 * loss) << run << " step " << step;
  }
}

TEST_F(DistRuns, AModelThatTheProcessesCannotHoldIsRefusedOnAll) {
  const Finished together = launch(2, "huge", {"model.width=16384", "model.layers=600", "model.heads=128"});
  EXPECT_NE(together.code, 0);
  EXPECT_NE(together.output.find("in the 2 processes"), std::string::npos) << together.output;
  EXPECT_FALSE(fs::exists(folder_ / "huge"));
  // 3 GiB of states do not fit into the memory limit of each process. Half of the moments would fit.
  std::string command = "ulimit -v 3075000; exec " + ring_binary() + " launch --nproc-per-node 2 --";
  const std::vector<std::string> large = train("large", {"model.width=1024", "model.layers=16", "model.heads=8"});
  for (auto word = large.begin() + 1; word != large.end(); ++word) command += " '" + *word + "'";
  const Finished apart = run_process({"/bin/sh", "-c", command});
  EXPECT_NE(apart.code, 0);
  EXPECT_NE(apart.output.find("set parallel.zero: 1"), std::string::npos) << apart.output;
}

TEST_F(DistRuns, DifferentSettingsAreRefusedOnAllRanks) {
  ASSERT_EQ(launch(2, "run").code, 0);
  const Finished refused = launch(2, "run", {"optimizer.lr=2e-3"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.output.find("optimizer.lr: 0.001 -> 0.002"), std::string::npos) << refused.output;
}

TEST_F(DistRuns, RunsRepeatAndResumeBitForBit) {
  ASSERT_EQ(launch(2, "a").code, 0);
  ASSERT_EQ(launch(2, "b").code, 0);
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(tensors("a", "step-000000030"), tensors("b", "step-000000030"));
  fs::remove_all(folder_ / "b/checkpoints/step-000000030");  // as if the run had been killed just before
  ASSERT_EQ(launch(2, "b").code, 0);
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(tensors("a", "step-000000030"), tensors("b", "step-000000030"));
}

TEST_F(DistRuns, ACheckpointOfTwoProcessesResumesInOne) {
  ASSERT_EQ(launch(2, "run").code, 0);
  const Finished f = launch(1, "run", {"train.steps=40", "--allow-changes"});
  EXPECT_EQ(f.code, 0) << f.output;
  EXPECT_EQ(losses("run").size(), 40u);
  if (std::thread::hardware_concurrency() > 1) {
    EXPECT_NE(f.output.find("run.threads: 1 per process"), std::string::npos) << f.output;
  }
  const Finished fewer = launch(1, "run", {"train.steps=35", "--allow-changes"});
  EXPECT_EQ(fewer.code, 1);
  EXPECT_NE(fewer.output.find("40 steps, more than 35"), std::string::npos) << fewer.output;
}

}  // namespace
}  // namespace ring::test
