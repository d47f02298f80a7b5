// `ringmaster plan`, as it is run.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/process.h"

namespace ring::test {
namespace {

Finished plan(std::vector<std::string> words) {
  words.insert(words.begin(), {RING_BINARY, "plan", std::string(RING_SOURCE_DIR) + "/bench/shapes/1b.yaml", "--rates",
                               "h100", "--context", "131072", "train.batch_size=1"});
  return run_process(words);
}

// The chunk of the fragment of settings that a plan ends with; 0: none.
int chunk_in(const std::string& output) {
  std::smatch found;
  return std::regex_search(output, found, std::regex(R"(train: \{.*mlp_chunk: (\d+))")) ? std::stoi(found[1]) : 0;
}

TEST(PlanCommand, TheBudgetOfTheSettingsCounts) {
  const Finished option = plan({"--memory", "60GB"}), bytes = plan({"train.memory_budget=60e9"});
  const Finished share = plan({"--memory", "75GB", "train.memory_budget=0.8"});
  ASSERT_EQ(option.code, 0) << option.output;
  EXPECT_EQ(bytes.output, option.output);
  EXPECT_EQ(share.output, option.output);
  EXPECT_NE(plan({}).output, option.output);
}

TEST(PlanCommand, ChoosesChunksWhereMemoryIsShort) {
  const Finished roomy = plan({"train.mlp_chunk=auto", "--memory", "500GB"});
  ASSERT_EQ(roomy.code, 0) << roomy.output;
  EXPECT_EQ(chunk_in(roomy.output), 0);
  EXPECT_NE(roomy.output.find(" all "), std::string::npos) << roomy.output;
  const Finished tight = plan({"train.mlp_chunk=auto", "--memory", "40GB"});
  ASSERT_EQ(tight.code, 0) << tight.output;
  EXPECT_GE(chunk_in(tight.output), 4096) << tight.output;
  // The fragment is what was planned.
  const Finished again = plan({"train.mlp_chunk=" + std::to_string(chunk_in(tight.output)), "--memory", "40GB"});
  EXPECT_EQ(again.output, tight.output);
  const Finished word = plan({"train.mlp_chunk=automatic"});
  EXPECT_NE(word.output.find("train.mlp_chunk"), std::string::npos) << word.output;
  EXPECT_EQ(word.code, 1);
}

double seconds_of_children() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + 1e-6 * static_cast<double>(used.ru_utime.tv_usec);
}

// Block patterns have a million blocks at this context, for each layer of each plan that is looked at.
TEST(PlanCommand, AdviceComparesKindsOfAttentionInAMoment) {
  const double begin = seconds_of_children();
  ASSERT_EQ(plan({}).code, 0);
  const double planned = seconds_of_children();
  const Finished advice = plan({"--advise"});
  const double advised = seconds_of_children();
  ASSERT_EQ(advice.code, 0) << advice.output;
  for (const char* kind :
       {"dense ", "window ", "dilated ", "block_sparse ", "model: {attention: {kind: window, window: "})
    EXPECT_NE(advice.output.find(kind), std::string::npos) << kind << advice.output;
  EXPECT_LT(advised - planned, 1 + 25 * (planned - begin));
}

}  // namespace
}  // namespace ring::test
