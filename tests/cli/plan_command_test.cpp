// `ringmaster plan`, run as a process.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

Finished plan(std::vector<std::string> words) {
  words.insert(words.begin(), {ring_binary(), "plan", source_dir() + "/bench/shapes/1b.yaml", "--rates", "h100",
                               "--context", "131072", "train.batch_size=1"});
  return run_process(words);
}

// Plans need no corpus if the settings give the size of the vocabulary.
TEST(PlanCommand, SettingsNeedNoCorpus) {
  const std::string file = testing::TempDir() + "plan_without_corpus.yaml";
  std::ofstream(file) << "model: {layers: 1, width: 32, heads: 2, context: 64}\n"
                         "train: {batch_size: 1, micro_batch: 1}\n";
  const Finished planned = run_process({ring_binary(), "plan", file, "--rates", "h100", "model.vocab_size=300"});
  EXPECT_EQ(planned.code, 0) << planned.output;
  EXPECT_NE(planned.output.find("\nThe fastest"), std::string::npos) << planned.output;
  const Finished unknown = run_process({ring_binary(), "plan", file, "--rates", "h100"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_NE(unknown.output.find("such as model.vocab_size="), std::string::npos) << unknown.output;
  std::filesystem::remove(file);
}

// The plan of one island counts the messages of all islands as host memory.
TEST(PlanCommand, AnIslandReceivesTheMessagesOfAllIslands) {
  const std::string file = testing::TempDir() + "plan_islands.yaml";
  std::ofstream(file) << "model: {layers: 1, width: 256, heads: 2, context: 64, vocab_size: 4096}\n"
                         "train: {micro_batch: 1, steps: 100}\nparallel: {local_steps: 8}\n";
  double host[2], sent = 0;  // MiB
  for (const int i : {0, 1}) {
    const std::string islands = i ? "8" : "2";
    const Finished f = run_process({ring_binary(), "plan", file, "--rates", "h100", "--gpus", islands,
                                    "train.batch_size=" + islands, "parallel.islands=" + islands});
    std::smatch row, message;
    // states, in step, peak, budget, host, seconds, tokens/s, MFU
    ASSERT_TRUE(std::regex_search(f.output, row, std::regex(R"(\n1 process .* ([\d.]+) +\S+ +\d+ +[\d.]+%)")))
        << f.output;
    ASSERT_TRUE(std::regex_search(f.output, message, std::regex(R"(it sends ([\d.]+) MiB to each)"))) << f.output;
    host[i] = std::stod(row[1]);
    sent = std::stod(message[1]);
  }
  EXPECT_NEAR(host[1] - host[0], 6 * sent, 0.05 * 6 * sent);
  std::filesystem::remove(file);
}

TEST(PlanCommand, PrintedSettingsAreThoseOfTheLayout) {
  const Finished given = plan({"train.recompute=block", "--memory", "500GB"}), chosen = plan({"--memory", "500GB"});
  EXPECT_NE(given.output.find("recompute: block}"), std::string::npos) << given.output;
  EXPECT_NE(given.output.find("planned with train.recompute: block"), std::string::npos) << given.output;
  EXPECT_NE(chosen.output.find("recompute: auto}"), std::string::npos) << chosen.output;
  EXPECT_EQ(chosen.output.find("planned with"), std::string::npos) << chosen.output;
}

TEST(PlanCommand, TheLongestContextIsPrintedWithItsSettings) {
  const std::string file = testing::TempDir() + "plan_longest.yaml";
  std::ofstream(file) << "model: {layers: 1, width: 32, heads: 2, context: 64, vocab_size: 300}\n"
                         "train: {batch_size: 1, micro_batch: 1}\n";
  const Finished planned =
      run_process({ring_binary(), "plan", file, "--rates", "h100", "--memory", "1GB", "--longest-context"});
  EXPECT_EQ(planned.code, 0) << planned.output;
  std::smatch longest;
  ASSERT_TRUE(std::regex_search(planned.output, longest, std::regex(R"(longest context with 1 GPU: (\d+) tokens)")))
      << planned.output;
  EXPECT_NE(planned.output.find("a context of " + longest[1].str() + " tokens"), std::string::npos) << planned.output;
  std::filesystem::remove(file);
}

// Returns the chunk size in the settings that a plan ends with; 0 if there is none.
int find_chunk(const std::string& output) {
  std::smatch found;
  return std::regex_search(output, found, std::regex(R"(train: \{.*mlp_chunk: (\d+))")) ? std::stoi(found[1]) : 0;
}

TEST(PlanCommand, TheMemoryBudgetOfTheSettingsCounts) {
  const Finished option = plan({"--memory", "60GB"}), bytes = plan({"train.memory_budget=60e9"});
  const Finished share = plan({"--memory", "75GB", "train.memory_budget=0.8"});
  ASSERT_EQ(option.code, 0) << option.output;
  EXPECT_EQ(bytes.output, option.output);
  EXPECT_EQ(share.output, option.output);
  EXPECT_NE(plan({}).output, option.output);
}

TEST(PlanCommand, ChunksAreChosenIfMemoryIsShort) {
  const Finished roomy = plan({"train.mlp_chunk=auto", "--memory", "500GB"});
  ASSERT_EQ(roomy.code, 0) << roomy.output;
  EXPECT_EQ(find_chunk(roomy.output), 0);
  EXPECT_NE(roomy.output.find(" all "), std::string::npos) << roomy.output;
  const Finished tight = plan({"train.mlp_chunk=auto", "--memory", "40GB"});
  ASSERT_EQ(tight.code, 0) << tight.output;
  EXPECT_GE(find_chunk(tight.output), 4096) << tight.output;
  // A plan with the chosen settings gives the same output.
  const Finished again = plan({"train.mlp_chunk=" + std::to_string(find_chunk(tight.output)), "--memory", "40GB"});
  EXPECT_EQ(again.output, tight.output);
  const Finished word = plan({"train.mlp_chunk=automatic"});
  EXPECT_NE(word.output.find("train.mlp_chunk"), std::string::npos) << word.output;
  EXPECT_EQ(word.code, 1);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Each row of the table by kind adds up to the peak of the same layout.
TEST(PlanCommand, MemoryIsShownByKind) {
  const Finished two = plan({"--gpus", "2", "--memory", "60GB"});
  ASSERT_EQ(two.code, 0) << two.output;
  const std::vector<std::string> lines = lines_of(two.output);
  const auto head = std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("by kind"); });
  ASSERT_NE(head, lines.end()) << two.output;
  for (const char* kind : {" weights", " gradients", " optimizer", " buffers", " inputs", " kept", " work", " in all"})
    EXPECT_NE(head->find(kind), std::string::npos) << *head;
  int rows = 0;
  for (auto line = head + 1; line != lines.end() && !line->empty(); ++line, ++rows) {
    std::istringstream numbers(line->substr(26));
    std::vector<double> gib;
    for (double number = 0; numbers >> number;) gib.push_back(number);
    ASSERT_EQ(gib.size(), 8u) << *line;
    EXPECT_NEAR(std::accumulate(gib.begin(), gib.end() - 1, 0.0), gib.back(), 0.004) << *line;
  }
  EXPECT_GT(rows, 1) << two.output;
}

// The model takes a few MiB: in GiB, all columns of its table would be 0.00.
TEST(PlanCommand, SmallModelsAreInMiB) {
  const Finished small = run_process(
      {ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml", "--rates", "h100", "model.vocab_size=300"});
  ASSERT_EQ(small.code, 0) << small.output;
  EXPECT_EQ(small.output.find("in GiB"), std::string::npos) << small.output;
  const std::vector<std::string> lines = lines_of(small.output);
  const auto kinds = std::ranges::find_if(lines, [](const std::string& l) { return l.starts_with("by kind, in MiB"); });
  ASSERT_NE(kinds, lines.end()) << small.output;
  std::istringstream numbers((kinds + 1)->substr(26));
  double weights = 0;
  numbers >> weights;
  EXPECT_GT(weights, 0.1) << small.output;
  const Finished large = plan({});
  EXPECT_NE(large.output.find("by kind, in GiB"), std::string::npos) << large.output;
}

TEST(PlanCommand, TheMinimumMemoryIsNamedAndAssumesWeightsOnTheHost) {
  const auto min_memory = [](const Finished& f) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(f.output, found, std::regex("1 process needs at least ([0-9.]+) GiB"))) << f.output;
    return found.empty() ? 0 : std::stod(found[1]);
  };
  const Finished none = plan({"--memory", "3GB"});
  EXPECT_EQ(none.code, 1) << none.output;
  const auto bytes = [](double gib) { return std::to_string(static_cast<long long>(gib * (1 << 30))); };
  const Finished enough = plan({"--memory", bytes(1.01 * min_memory(none))});
  ASSERT_EQ(enough.code, 0) << enough.output;
  EXPECT_NE(enough.output.find("1 process, offload weights"), std::string::npos) << enough.output;
  EXPECT_NE(enough.output.find("optimizer: {offload: weights"), std::string::npos) << enough.output;
  EXPECT_EQ(plan({"--memory", bytes(0.97 * min_memory(none))}).code, 1);
}

// The error is that of `train` instead of a lack of memory.
TEST(PlanCommand, MistakesInSettingsAreNamed) {
  for (const std::string& setting : {std::string("train.micro_batch=3"), std::string("model.kv_heads=7")}) {
    const Finished end = plan({setting});
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.output.find(setting.substr(0, setting.find('='))), std::string::npos) << end.output;
    EXPECT_EQ(end.output.find("fits"), std::string::npos) << end.output;
  }
  const Finished key = plan({"train.micro_batches=2"});
  EXPECT_EQ(key.code, 1);
  EXPECT_NE(key.output.find("train.micro_batches"), std::string::npos) << key.output;
}

// 3 processes can divide neither a batch of 2 nor the heads.
TEST(PlanCommand, ANumberOfGpusWithoutALayoutDoesNotEndThePlan) {
  const Finished several = plan({"--gpus", "1,3,2", "train.batch_size=2", "parallel.cp=1"});
  EXPECT_EQ(several.code, 0) << several.output;
  std::size_t at = 0;
  for (const char* part : {"\n1 GPU of", "\n3 GPUs of", "no layout: ", "batch_size", "\n2 GPUs of", "\nThe fastest"}) {
    at = several.output.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << " in " << several.output;
  }
  const Finished alone = plan({"--gpus", "3", "train.batch_size=2", "parallel.cp=1"});
  EXPECT_EQ(alone.code, 1) << alone.output;
  EXPECT_EQ(plan({"--gpus", "3,5", "train.batch_size=2", "parallel.cp=1"}).code, 1);
}

// Plans a small model on 4 GPUs.
Finished plan_degrees(std::vector<std::string> words) {
  words.insert(words.begin(), {ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml", "model.vocab_size=300",
                               "model.layers=1", "train.micro_batch=1", "train.batch_size=16", "--rows", "100",
                               "--rates", "h100", "--gpus", "4"});
  return run_process(words);
}

TEST(PlanCommand, DegreesInTheSettingsAreKept) {
  const Finished all = plan_degrees({});
  const auto rows_with = [](const std::string& output, const std::string& degree) {
    const std::string table = output.substr(0, output.find("by kind"));
    return std::ranges::count_if(lines_of(table), [&](const std::string& line) {
      return !line.starts_with("only") && line.find(" zero ") < 26 &&
             (" " + line.substr(0, 26)).find(" " + degree) != std::string::npos;
    });
  };
  const Finished given = plan_degrees({"parallel.tp=2", "parallel.zero=3"});
  EXPECT_NE(given.output.find("layouts with tp 2, zero 3"), std::string::npos) << given.output;
  EXPECT_EQ(rows_with(given.output, ""), 2) << given.output;  // dp 2 or cp 2
  EXPECT_EQ(rows_with(given.output, "tp 2, zero 3"), 2) << given.output;
  // A default counts if it is given on the command line.
  const Finished none = plan_degrees({"parallel.tp=1"});
  EXPECT_GT(rows_with(all.output, "tp "), 0) << all.output;
  EXPECT_EQ(rows_with(none.output, "tp "), 0) << none.output;
  EXPECT_GT(rows_with(none.output, ""), 2) << none.output;
  EXPECT_EQ(plan_degrees({"parallel.tp=2", "--all-layouts"}).output, all.output);
  const Finished impossible = plan_degrees({"parallel.tp=8"});
  EXPECT_EQ(impossible.code, 1);
  EXPECT_NE(impossible.output.find("parallel degrees tp 8"), std::string::npos) << impossible.output;
}

// A signal is pending when the program starts, so that the signal arrives before the first layout is planned.
TEST(PlanCommand, AnInterruptedPlanSaysThatItIsIncomplete) {
  Process process({ring_binary(), "plan", source_dir() + "/bench/shapes/1b.yaml", "--rates", "h100", "--gpus", "64",
                   "--longest-context", "train.batch_size=64", "train.recompute=auto"},
                  {}, [] {
                    sigset_t stop;
                    sigemptyset(&stop);
                    sigaddset(&stop, SIGTERM);
                    sigprocmask(SIG_BLOCK, &stop, nullptr);
                    std::signal(SIGTERM, SIG_DFL);  // an ignored signal would not stay pending
                    kill(getpid(), SIGTERM);        // pending for the process: raise() would tell its first thread
                  });
  const Finished end = process.wait();
  EXPECT_EQ(end.code, 1) << end.output;
  EXPECT_TRUE(std::regex_search(end.output, std::regex(R"(incomplete: interrupted after \d+ of \d+)"))) << end.output;
  EXPECT_EQ(end.output.find("longest context"), std::string::npos) << end.output;
}

// Plans a model with 300 tokens on this machine, which may have no GPU, with run.device=auto as most settings have it.
Finished plan_here(std::vector<std::string> words) {
  words.insert(words.begin(), {ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml", "model.vocab_size=300",
                               "model.layers=1", "train.micro_batch=1", "train.batch_size=16", "--rows", "1"});
  return run_process(words);
}

TEST(PlanCommand, GpusAreAskedForAndGpusArePlanned) {
  const Process::Environment none{{"CUDA_VISIBLE_DEVICES", ""}};
  const std::vector<std::string> base{ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml",
                                      "model.vocab_size=300"};
  const auto planned = [&](std::vector<std::string> words) {
    words.insert(words.begin(), base.begin(), base.end());
    const Finished end = run_process(words, none);
    EXPECT_EQ(end.code, 0) << end.output;
    return end.output;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(planned({}), "rates of cpu\n"));
  const std::string two = planned({"--gpus", "2", "--memory", "80GB"});
  EXPECT_TRUE(has(two, "rates of h100\n") && has(two, "this machine has no GPU") && has(two, "\n2 GPUs of 79.10 GiB"))
      << two;
  EXPECT_TRUE(has(planned({"--memory", "141GB"}), "rates of h200\n"));
  EXPECT_TRUE(has(planned({"--gpus", "2", "run.device=cpu"}), "rates of cpu\n"));
  const std::string cuda = planned({"run.device=cuda"});
  EXPECT_TRUE(has(cuda, "rates of h100\n") && has(cuda, "this machine has no GPU")) << cuda;
  EXPECT_TRUE(has(planned({"--gpus", "2", "--rates", "cpu"}), "\n2 processes of "));
  const std::string rates = planned({"--gpus", "2", "--rates", "H100"});
  EXPECT_TRUE(has(rates, "\n2 GPUs of 79.10 GiB")) << rates;
  EXPECT_EQ(rates.substr(rates.find("\n2 GPUs")), two.substr(two.find("\n2 GPUs")));
}

// The length is a million steps, or as many tokens, at the speed that the table shows for the first layout.
TEST(PlanCommand, TheDurationOfTheWholeRunIsShown) {
  const auto hours = [](const std::vector<std::string>& length) {
    std::vector<std::string> words = length;
    words.insert(words.begin(), "train.steps=0");
    const Finished end = plan(words);
    std::smatch row, whole;
    EXPECT_TRUE(std::regex_search(end.output, row, std::regex(R"(([0-9.]+) +[0-9]+ +[0-9.]+%)"))) << end.output;
    EXPECT_TRUE(
        std::regex_search(end.output, whole, std::regex(R"(the whole run of .* fastest layout: (\d+)d(\d\d)h\n)")))
        << end.output;
    if (whole.empty()) return std::pair(0.0, 1.0);
    return std::pair(1e6 * std::stod(row[1]) / 3600, 24 * std::stod(whole[1]) + std::stod(whole[2]));
  };
  const auto [steps, steps_said] = hours({"train.steps=1e6"});
  EXPECT_NEAR(steps_said, steps, 1 + 1e-3 * steps);
  const auto [tokens, tokens_said] = hours({"train.tokens=131072e6"});
  EXPECT_NEAR(tokens_said, tokens, 1 + 1e-3 * tokens);
}

TEST(PlanCommand, MoreGpusThanAMachineHasAreALowerBound) {
  const Finished one = plan_here({"--gpus", "8", "--rates", "h100"});
  EXPECT_EQ(one.output.find("lower bound"), std::string::npos) << one.output;
  const Finished several = plan_here({"--gpus", "16", "--rates", "h100"});
  EXPECT_NE(several.output.find("more than 8 GPUs"), std::string::npos) << several.output;
  EXPECT_NE(several.output.find("lower bound"), std::string::npos) << several.output;
}

// Plans a small model on nodes of 2 processes.
Finished plan_nodes(std::vector<std::string> words) {
  words.insert(words.begin(), {ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml", "model.vocab_size=300",
                               "model.layers=1", "train.micro_batch=1", "train.batch_size=16", "--rates", "h100"});
  return run_process(words);
}

TEST(PlanCommand, NodesArePlannedOverTwoRates) {
  const Finished fast = plan_nodes({"--nodes", "2", "--gpus-per-node", "2", "--node-link", "400Gb/s"});
  ASSERT_EQ(fast.code, 0) << fast.output;
  for (const char* part : {"between nodes 50 GB/s each way, which the 2 GPUs of a node share", "2 nodes of 2 GPUs of",
                           "per GPU", "parallel: {dp: "})
    EXPECT_NE(fast.output.find(part), std::string::npos) << part << fast.output;
  EXPECT_EQ(fast.output.find("lower bound"), std::string::npos) << fast.output;
  EXPECT_EQ(plan_nodes({"--nodes", "2", "--gpus-per-node", "2", "--node-link", "50GB/s"}).output, fast.output);
  const Finished slow = plan_nodes({"--nodes", "2", "--gpus-per-node", "2", "--node-link", "1Mb/s"});
  ASSERT_EQ(slow.code, 0) << slow.output;
  EXPECT_NE(slow.output.find("messages between nodes"), std::string::npos) << slow.output;
}

// The printed line is a settings section: a plan with it has that layout alone.
TEST(PlanCommand, TheLayoutOfNodesIsASetting) {
  const std::vector<std::string> nodes = {"--nodes", "4", "--gpus-per-node", "2", "--node-link", "400Gb/s"};
  std::vector<std::string> words = nodes;
  words.insert(words.end(), {"parallel.cp=8", "parallel.tp=1"});
  const Finished ring = plan_nodes(words);
  ASSERT_EQ(ring.code, 0) << ring.output;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(ring.output, found, std::regex(R"(    parallel: (\{.*\})\n)"))) << ring.output;
  EXPECT_NE(found[1].str().find("cp: 8, tp: 1"), std::string::npos) << ring.output;
  EXPECT_NE(found[1].str().find("cp_ranks_per_node: 2}"), std::string::npos) << ring.output;
  words = nodes;
  words.push_back("parallel=" + found[1].str());
  const Finished again = plan_nodes(words);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("    parallel: " + found[1].str()), std::string::npos) << again.output;
}

TEST(PlanCommand, MistakesInNodesNameTheOptionAndTheRemedy) {
  const auto expect = [](const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    const Finished end = plan_nodes(words);
    EXPECT_EQ(end.code, 1) << end.output;
    for (const std::string& part : parts) EXPECT_NE(end.output.find(part), std::string::npos) << part << end.output;
  };
  expect({"--nodes", "2"}, {"--node-link", "400Gb/s", "bench links"});
  for (const char* rate : {"400", "fast", "-4GB/s", "0Gb/s", "nanGb/s", "infGb/s", "4GB"})
    expect({"--nodes", "2", "--node-link", rate}, {"--node-link: expected a rate", std::string("'") + rate + "'"});
  expect({"--nodes", "9000", "--node-link", "1GB/s"}, {"72000 GPUs", "65536"});
  expect({"--gpus-per-node", "4"}, {"--gpus-per-node needs", "--nodes N"});
  expect({"--node-link", "1GB/s"}, {"--node-link needs", "--nodes N"});
  expect({"--gpus", "2", "--nodes", "2"}, {"exclude each other"});
}

double seconds_of_children() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + 1e-6 * static_cast<double>(used.ru_utime.tv_usec);
}

// At this context, block patterns have a million blocks in each layer of each plan.
TEST(PlanCommand, AdviceComparesKindsOfAttentionQuickly) {
  const double begin = seconds_of_children();
  ASSERT_EQ(plan({}).code, 0);
  const double planned = seconds_of_children();
  const Finished advice = plan({"--advise"});
  const double advised = seconds_of_children();
  ASSERT_EQ(advice.code, 0) << advice.output;
  for (const char* kind : {"dense ", "window ", "dilated ", "hierarchical ", "content ", "learned ", "importance ",
                           "pools ", "model: {attention: {kind: window, window: "})
    EXPECT_NE(advice.output.find(kind), std::string::npos) << kind << advice.output;
  EXPECT_LT(advised - planned, 1 + 25 * (planned - begin));
}

// Rates measured on this machine, the step time that they predict, and that step.
class Calibrated : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ring_rates_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  static Finished ring(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    words.insert(words.begin(), ring_binary());
    words.insert(words.end(), {source_dir() + "/configs/nanogpt_cpu.yaml", "run.device=cpu", "run.threads=1",
                               "model.vocab_size=300", "model.layers=2", "train.batch_size=4"});
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

 private:
  std::string folder_;
};

TEST_F(Calibrated, RatesPredictTheStepsOfThisMachine) {
  const std::string rates = path("rates.yaml");
  const Finished calibrated = ring({"bench", "calibrate", "--out", rates});
  ASSERT_EQ(calibrated.code, 0) << calibrated.output;
  const Finished planned = ring({"plan", "--rates", rates});
  ASSERT_EQ(planned.code, 0) << planned.output;
  EXPECT_NE(planned.output.find("rates of cpu"), std::string::npos) << planned.output;
  const Finished step = ring({"bench", "step", "--steps", "5", "--warmup", "2", "--no-ceilings", "--rates", rates});
  ASSERT_EQ(step.code, 0) << step.output;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(step.output, found, std::regex(R"(step [0-9.]+ ms, ([0-9.]+) of the measured time)")))
      << step.output;
  EXPECT_GT(std::stod(found[1]), 0) << step.output;  // a shared machine does not allow a tighter check
}

TEST_F(Calibrated, AFileKeepsRatesThatAreNotMeasured) {
  const std::string rates = path("rates.yaml");
  const std::string all =
      "peak_flops: 1e9\nbytes_per_second: 1e9\nlink_bytes_per_second: 12345\n"
      "bf16: {products: 3e9, attention: 2e9, attention_backward: 1e9}\n";
  write("rates.yaml", "device: cpu\n" + all);
  const Finished again = ring({"bench", "calibrate", "--out", rates});
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("link_bytes_per_second: 12345"), std::string::npos) << again.output;
  EXPECT_NE(again.output.find("products: 3e9"), std::string::npos) << again.output;
  write("rates.yaml", "device: Some GPU\n" + all);
  const Finished other = ring({"bench", "calibrate", "--out", rates});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.output.find("got rates of Some GPU"), std::string::npos) << other.output;
  const Finished missing = ring({"plan", "--rates", rates}, {"train.precision=tf32"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.output.find("rates of Some GPU"), std::string::npos) << missing.output;
  EXPECT_NE(missing.output.find("none for tf32"), std::string::npos) << missing.output;
  EXPECT_EQ(ring({"plan", "--rates", rates}, {"train.precision=bf16"}).code, 0);
}

// `plan` and `bench step` read the same key, and give the same error if it is wrong.
TEST_F(Calibrated, SettingsNameRatesForPlansAndRuns) {
  write("rates.yaml",
        "device: cpu\npeak_flops: 1e9\nbytes_per_second: 1e9\n"
        "fp32: {products: 3e9, attention: 2e9, attention_backward: 1e9}\n");
  const std::string file = path("rates.yaml"), missing = path("none.yaml");
  const Finished option = ring({"plan", "--rates", file}), setting = ring({"plan"}, {"run.rates=" + file});
  EXPECT_EQ(setting.code, 0) << setting.output;
  EXPECT_EQ(setting.output, option.output);
  EXPECT_NE(setting.output, ring({"plan"}).output);
  EXPECT_EQ(ring({"bench", "step", "--steps", "1", "--warmup", "0", "--no-ceilings"}, {"run.rates=" + file}).code, 0);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"plan"}, {"bench", "step"}}) {
    const Finished end = ring(command, {"run.rates=" + missing});
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.output.find("run.rates: " + missing), std::string::npos) << end.output;
    EXPECT_NE(end.output.find("ringmaster bench calibrate"), std::string::npos) << end.output;
  }
}

// A CPU has no peak from a data sheet, and that of a GPU must not be used for it.
TEST_F(Calibrated, BenchStepPrintsMfuOfACpuOnlyIfGivenItsPeak) {
  const std::vector<std::string> words = {"bench", "step", "--steps", "1", "--warmup", "0", "--no-ceilings"};
  const Finished step = ring(words);
  ASSERT_EQ(step.code, 0) << step.output;
  EXPECT_NE(step.output.find("TFLOP/s"), std::string::npos) << step.output;
  EXPECT_EQ(step.output.find("MFU"), std::string::npos) << step.output;
  const Finished told = ring(words, {"--peak-tflops", "2"});
  EXPECT_NE(told.output.find("% of 2 TFLOP/s"), std::string::npos) << told.output;
}

class DistCalibrated : public Calibrated {};

// Two processes also measure the link between them. One process alone keeps the rate of the link in the file.
TEST_F(DistCalibrated, AllProcessesMeasureTheLink) {
  const std::string rates = path("rates.yaml");
  const Finished measured = ring({"launch", "-n", "2", "--", "bench", "calibrate", "--out", rates});
  ASSERT_EQ(measured.code, 0) << measured.output;
  const auto number = [](const std::string& output, const std::string& key) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(output, found, std::regex("\\b" + key + ": ([0-9.e+-]+)"))) << key << output;
    return found.empty() ? -1 : std::stod(found[1]);
  };
  // Both rates are of one host's memory, on a machine that may be busy.
  for (const char* key : {"link_bytes_per_second", "collective_bytes_per_second"}) {
    EXPECT_GT(number(measured.output, key), 1e6);
    EXPECT_LT(number(measured.output, key), 2e11);
  }
  EXPECT_LT(number(measured.output, "collective_seconds"), 5);
  const Finished alone = ring({"bench", "calibrate", "--out", rates});
  ASSERT_EQ(alone.code, 0) << alone.output;
  for (const char* key : {"link_bytes_per_second", "link_seconds", "collective_bytes_per_second"})
    EXPECT_EQ(number(alone.output, key), number(measured.output, key));
  const Finished planned = ring({"plan", "--rates", rates, "--gpus", "2"});
  EXPECT_EQ(planned.code, 0) << planned.output;
  EXPECT_EQ(planned.output.find("include no link"), std::string::npos) << planned.output;
}

// A window of 1024 tokens reaches one rank of 4096 tokens, so that attention sends the same on all larger rings.
TEST(PlanCommand, BytesPerRankArePrintedForEachNumberOfRanks) {
  const auto bytes = [](std::vector<std::string> words) {
    words.insert(words.begin(), {ring_binary(), "plan", source_dir() + "/configs/quickstart.yaml", "--rates", "h100",
                                 "model.vocab_size=300", "model.context=4096", "train.micro_batch=1", "--context",
                                 "4096", "model.attention={kind: window, window: 1024}"});
    return run_process(words);
  };
  const Finished table = bytes({"--bytes-per-rank", "--ranks", "1,16,262144"});
  ASSERT_EQ(table.code, 0) << table.output;
  std::vector<std::vector<double>> rows;
  for (const std::string& line : lines_of(table.output)) {
    std::istringstream numbers(line);
    std::vector<double> row;
    for (double number = 0; numbers >> number;) row.push_back(number);
    if (row.size() == 9) rows.push_back(row);
  }
  ASSERT_EQ(rows.size(), 3u) << table.output;
  EXPECT_EQ(rows[0][6], 0) << "one process sends nothing";
  EXPECT_EQ(rows[1][1], 16 * 4096);
  EXPECT_GT(rows[1][2], 0);
  EXPECT_EQ(rows[2][2], rows[1][2]);
  EXPECT_EQ(bytes({"--bytes-per-rank", "--gpus", "4"}).code, 1);
  EXPECT_EQ(bytes({"--bytes-per-rank", "--nodes", "4"}).code, 1);
  EXPECT_NE(bytes({"--ranks", "4"}).code, 0);
}

}  // namespace
}  // namespace ring::test
