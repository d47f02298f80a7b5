// scripts/cluster.py: jobs on nodes that this machine simulates, over links with a known rate.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "comm/gloo/gloo.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring {
namespace {

using test::Finished;

constexpr int kUnavailable = 77;  // the status of cluster.py if the machine does not permit such a network

class DistCluster : public test::Runs {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    Runs::SetUp();
  }

  // Runs a command on a cluster. Sets `skipped` to the reason if this machine permits none.
  static Finished run_cluster(std::vector<std::string> options, const std::vector<std::string>& command,
                              std::string& skipped) {
    options.insert(options.begin(), {"/usr/bin/env", "python3", test::source_dir() + "/scripts/cluster.py", "--program",
                                     test::ring_binary()});
    options.emplace_back("--");
    options.insert(options.end(), command.begin(), command.end());
    Finished f = test::run_process(options);
    if (f.code == kUnavailable || f.code == 127) skipped = f.output;
    return f;
  }
};

// No node can send much faster than its link, except for a burst of 2 ms. The measured rate may be far lower on a busy
// machine. `plan` takes it from the file that `bench links` wrote.
TEST_F(DistCluster, LinksAreMeasuredWherePlanReadsThem) {
  std::string skipped;
  const std::string rates = path("rates.yaml");
  const Finished links =
      run_cluster({"--nodes", "2", "--per-node", "2", "--rate", "500Mb/s"},
                  {"bench", "links", "--device", "cpu", "--seconds", "0.01", "--out", rates}, skipped);
  if (!skipped.empty()) GTEST_SKIP() << skipped;
  ASSERT_EQ(links.code, 0) << links.output;
  for (const char* part : {"2 nodes of 2 ranks, cpu over gloo", "inside a node", "between nodes", "all-reduce"})
    EXPECT_NE(links.output.find(part), std::string::npos) << part << "\n" << links.output;
  std::ifstream file(rates);
  std::stringstream text;
  text << file.rdbuf();
  std::smatch found;
  const std::string yaml = text.str();
  ASSERT_TRUE(std::regex_search(yaml, found, std::regex("node_link_bytes_per_second: ([0-9.e+-]+)"))) << yaml;
  EXPECT_GT(std::stod(found[1]), 0);
  EXPECT_LT(std::stod(found[1]), 2 * 500e6 / 8) << "faster than the link";
  const Finished plan =
      ring({"plan", test::source_dir() + "/configs/quickstart.yaml", "model.vocab_size=300", "model.layers=1",
            "train.batch_size=4", "train.micro_batch=1", "--rates", rates, "--nodes", "2", "--gpus-per-node", "2"});
  ASSERT_EQ(plan.code, 0) << plan.output;
  EXPECT_NE(plan.output.find("2 nodes of 2 processes of"), std::string::npos) << plan.output;
}

// Lost and late frames change no loss.
TEST_F(DistCluster, ARunOverABadNetworkIsBitIdentical) {
  std::string skipped;
  const auto words = [&](const std::string& run) {
    return train(run, {"train.steps=6", "train.micro_batch=1", "run.threads=1", "parallel.cp=4"});
  };
  std::vector<std::string> far = words("far"), near = words("near");
  near.push_back("parallel.cp_ranks_per_node=2");  // on nodes this follows from their names
  const Finished bad = run_cluster({"--nodes", "2", "--per-node", "2", "--delay", "2", "--loss", "0.5"},
                                   {far.begin() + 1, far.end()}, skipped);
  if (!skipped.empty()) GTEST_SKIP() << skipped;
  ASSERT_EQ(bad.code, 0) << bad.output;
  std::vector<std::string> local = {"launch", "-n", "4", "--"};
  local.insert(local.end(), near.begin() + 1, near.end());
  const Finished good = ring(local);
  ASSERT_EQ(good.code, 0) << good.output;
  EXPECT_EQ(losses("far"), losses("near"));
  EXPECT_EQ(losses("far").size(), 6u);
}

TEST_F(DistCluster, MistakesNameTheOption) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--rate", "100"}, {"--loss", "nan"}, {"--network", "tbf", "--delay", "1"}}) {
    std::string skipped;
    const Finished f = run_cluster(options, {"bench", "links"}, skipped);
    if (!skipped.empty()) GTEST_SKIP() << skipped;
    EXPECT_EQ(f.code, 2) << f.output;
    EXPECT_NE(f.output.find(options[options.size() - 2]), std::string::npos) << f.output;
  }
}

}  // namespace
}  // namespace ring
