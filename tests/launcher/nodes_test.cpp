// Several nodes on one machine: two network namespaces with their own names, joined by a virtual wire that can be cut.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "comm/gloo/gloo.h"
#include "core/exit_code.h"
#include "tests/launcher/node.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using test::Finished;
using test::Node;
using test::Process;

constexpr int kNodes = 2, kSteps = 40;
constexpr int kSilence = 2;  // seconds; the value of RINGMASTER_LIVENESS
constexpr const char* kLast = "step-000000040";
constexpr const char* kAddresses[kNodes] = {"10.71.0.1", "10.71.0.2"};

struct Layout {
  const char* name;
  int ranks_per_node;
  std::vector<std::string> settings;
  std::vector<std::string> told_locally = {};  // settings that on nodes follow from their names
  int world() const { return kNodes * ranks_per_node; }
};
void PrintTo(const Layout& l, std::ostream* out) { *out << l.name; }

class DistNodes : public test::Runs, public testing::WithParamInterface<Layout> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to create network namespaces";
    for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"})
      if (ip_.empty() && access(path, X_OK) == 0) ip_ = path;
    if (ip_.empty()) GTEST_SKIP() << "needs the program ip (package iproute2)";
    try {
      for (int i = 0; i < kNodes; ++i) nodes_[i] = std::make_unique<Node>("node" + std::to_string(i));
    } catch (const std::runtime_error& e) {
      GTEST_SKIP() << e.what();
    }
    const Finished wire = ip(
        0, {"link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", std::to_string(nodes_[1]->pid())});
    if (wire.code != 0) GTEST_SKIP() << "this kernel joins no namespaces: " << wire.output;
    for (int i = 0; i < kNodes; ++i) {
      for (const char* device : {"lo", "wire"}) ASSERT_EQ(ip(i, {"link", "set", device, "up"}).code, 0);
      ASSERT_EQ(ip(i, {"address", "add", std::string(kAddresses[i]) + "/24", "dev", "wire"}).code, 0);
    }
    Runs::SetUp();
  }

  Finished ip(int node, std::vector<std::string> words) const {
    words.insert(words.begin(), ip_);
    return nodes_[node]->run(words);
  }
  void set_wire(const char* state) const { ASSERT_EQ(ip(0, {"link", "set", "wire", state}).code, 0); }

  std::vector<std::string> alone(const std::string& run) const {
    return train(run, {"train.steps=" + std::to_string(kSteps), "train.micro_batch=1", "run.threads=1"});
  }
  std::vector<std::string> shared(const std::string& run) const {
    std::vector<std::string> words = alone(run);
    words.insert(words.end(), GetParam().settings.begin(), GetParam().settings.end());
    return words;
  }
  // Starts every rank of the run on its node, without the launcher.
  std::vector<std::unique_ptr<Process>> start(const std::string& run) const {
    const int here = GetParam().ranks_per_node;
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < GetParam().world(); ++rank)
      ranks.push_back(nodes_[rank / here]->start(shared(run), {{"RANK", std::to_string(rank)},
                                                               {"WORLD_SIZE", std::to_string(GetParam().world())},
                                                               {"LOCAL_RANK", std::to_string(rank % here)},
                                                               {"LOCAL_WORLD_SIZE", std::to_string(here)},
                                                               {"MASTER_ADDR", kAddresses[0]},
                                                               {"MASTER_PORT", "29500"},
                                                               {"RINGMASTER_SECRET", std::string(32, 's')},
                                                               {"RINGMASTER_LIVENESS", std::to_string(kSilence)}}));
    return ranks;
  }
  bool has_checkpoint(const std::string& run) const {
    std::error_code none_yet;
    for (const auto& entry : test::fs::directory_iterator(folder_ / run / "checkpoints", none_yet))
      if (entry.path().filename().string().find(".tmp") == std::string::npos) return true;
    return false;
  }
  // Waits for `steps` steps and a checkpoint. Checkpoints are written beside the steps, so that a slow one may appear
  // later.
  bool reaches(const std::string& run, std::size_t steps) const {
    for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::seconds(60);) {
      if (records(run) > steps && has_checkpoint(run)) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  // Runs the same ranks on this machine.
  void run_locally(const std::string& run) const {
    std::vector<std::string> words = {"launch", "-n", std::to_string(GetParam().world()), "--"};
    const std::vector<std::string> all = shared(run);
    words.insert(words.end(), all.begin() + 1, all.end());
    words.insert(words.end(), GetParam().told_locally.begin(), GetParam().told_locally.end());
    const Finished f = ring(words);
    ASSERT_EQ(f.code, 0) << f.output;
  }
  // Expects that the ranks end because they lost a rank, and that at least one of them names a rank of the other node.
  // Others may have lost rank 0, which serves the store and left for that reason.
  void expect_end(const std::vector<std::unique_ptr<Process>>& ranks, int node) const {
    const int here = GetParam().ranks_per_node;
    std::string all;
    for (int rank = node * here; rank < (node + 1) * here; ++rank) {
      const Finished f = ranks[static_cast<std::size_t>(rank)]->wait();
      EXPECT_EQ(f.code, kExitPeerLost) << "rank " << rank << "\n" << f.output;
      all += f.output;
    }
    bool named = false;
    for (int rank = (1 - node) * here; rank < (2 - node) * here; ++rank)
      named |= all.find("rank " + std::to_string(rank)) != std::string::npos;
    EXPECT_TRUE(named) << "node " << node << "\n" << all;
  }
  // Compares losses within the error of fp32 sums in a different order.
  static void expect_close(const std::map<int, std::string>& a, const std::map<int, std::string>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [step, loss] : a)
      EXPECT_NEAR(std::stod(loss), std::stod(b.at(step)), 1e-5 * std::stod(loss)) << "step " << step;
  }
  void expect_whole_checkpoints(const std::string& run) const {
    const Finished verified = ring({"checkpoint", "verify", path(run)});
    EXPECT_EQ(verified.code, 0) << verified.output;
    for (const auto& entry : test::fs::directory_iterator(folder_ / run / "checkpoints"))
      EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry.path();
  }

  std::string ip_;
  std::unique_ptr<Node> nodes_[kNodes];
};

INSTANTIATE_TEST_SUITE_P(Layouts, DistNodes,
                         testing::Values(Layout{"Data", 1, {}}, Layout{"Zero", 2, {"parallel.zero=3"}},
                                         Layout{"Context", 2, {"parallel.cp=4"}, {"parallel.cp_ranks_per_node=2"}},
                                         Layout{"ContextAndZero", 2, {"parallel.cp=2", "parallel.zero=2"}}),
                         [](const auto& layout) { return layout.param.name; });

// The losses are those of one device, and the results are bit-identical to those of one machine, also if the run
// stopped because the wire was cut.
TEST_P(DistNodes, TrainLikeOneMachineAndSurviveACutWire) {
  ASSERT_EQ(test::run_process(alone("alone")).code, 0);
  ASSERT_NO_FATAL_FAILURE(run_locally("local"));

  const auto cut_off = start("nodes");
  ASSERT_TRUE(reaches("nodes", 7)) << (cut_off[0]->signal(SIGKILL), cut_off[0]->wait().output);
  set_wire("down");
  const auto cut = Clock::now();
  for (int node = 0; node < kNodes; ++node) expect_end(cut_off, node);
  EXPECT_LT(Clock::now() - cut, std::chrono::seconds(kSilence + 10));
  EXPECT_LT(losses("nodes").rbegin()->first, kSteps) << "the run was over before the wire was cut";
  expect_whole_checkpoints("nodes");

  set_wire("up");
  for (const auto& rank : start("nodes")) {
    const Finished f = rank->wait();
    EXPECT_EQ(f.code, 0) << f.output;
  }
  expect_whole_checkpoints("nodes");
  EXPECT_EQ(losses("nodes"), losses("local"));
  EXPECT_EQ(tensors("nodes", kLast), tensors("local", kLast));
  expect_close(losses("nodes"), losses("alone"));
}

// Both nodes are started by `ringmaster launch`.
class DistNodesLaunched : public DistNodes {
 protected:
  void SetUp() override {
    DistNodes::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(ring({"launch", "--make-secret", path("secret")}).code, 0);
  }
  using Words = std::vector<std::string>;
  std::unique_ptr<Process> launch(int node, const std::string& run,
                                  const Words& how = {"--rdzv-conf", "keep_alive_timeout=3"},
                                  const Process::Environment& environment = {
                                      {"RINGMASTER_LIVENESS", std::to_string(kSilence)}}) const {
    std::vector<std::string> words = {test::ring_binary(), "launch",
                                      "--nnodes",          "2",
                                      "--nproc-per-node",  std::to_string(GetParam().ranks_per_node),
                                      "--rdzv-endpoint",   std::string(kAddresses[0]) + ":29400",
                                      "--secret-file",     path("secret")};
    words.insert(words.end(), how.begin(), how.end());
    words.emplace_back("--");
    const std::vector<std::string> all = shared(run);
    words.insert(words.end(), all.begin() + 1, all.end());
    return nodes_[node]->start(words, environment);
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, DistNodesLaunched, testing::Values(Layout{"Zero", 2, {"parallel.zero=3"}}),
                         [](const auto& layout) { return layout.param.name; });

// The leader gives up the node that was cut off, and that node gives up the leader. Neither continues without the
// other, and once the wire is back they do.
TEST_P(DistNodesLaunched, SurviveACutWire) {
  ASSERT_NO_FATAL_FAILURE(run_locally("local"));
  const auto first = launch(0, "nodes"), second = launch(1, "nodes");
  ASSERT_TRUE(reaches("nodes", 7)) << (first->signal(SIGKILL), first->wait().output);
  set_wire("down");
  std::this_thread::sleep_for(std::chrono::seconds(5));
  ASSERT_TRUE(first->running()) << first->wait().output;
  set_wire("up");
  const Finished led = first->wait(), given_up = second->wait();
  EXPECT_EQ(led.code, 0) << led.output;
  EXPECT_EQ(given_up.code, 0) << given_up.output;
  EXPECT_NE(led.output.find("nodes: node0 (ranks 0-1), node1 (ranks 2-3)"), std::string::npos) << led.output;
  for (const char* part : {"node 1 (node1) is lost", "no sign of life"})
    EXPECT_NE(led.output.find(part), std::string::npos) << led.output;
  expect_whole_checkpoints("nodes");
  EXPECT_EQ(losses("nodes"), losses("local"));
  EXPECT_EQ(tensors("nodes", kLast), tensors("local", kLast));
}

// Each node finds out by itself that nothing makes progress.
TEST_P(DistNodesLaunched, ACutWireIsNamedByTheHangLimit) {
  const Words how = {"--rdzv-conf", "join_timeout=8,keep_alive_timeout=6", "--hang-limit", "2", "--monitor-interval",
                     "0.02"};
  const auto first = launch(0, "nodes", how, {{"RINGMASTER_LIVENESS", "0"}});
  const auto second = launch(1, "nodes", how, {{"RINGMASTER_LIVENESS", "0"}});
  ASSERT_TRUE(reaches("nodes", 25)) << (first->signal(SIGKILL), first->wait().output);
  set_wire("down");
  const auto cut = Clock::now();
  const Finished led = first->wait(), cut_off = second->wait();
  // It takes 12 s to name the wire, join_timeout until the first agent ends without the second, and some time on a busy
  // machine.
  EXPECT_LT(Clock::now() - cut, std::chrono::seconds(12 + 8 + 5)) << led.output << cut_off.output;
  for (const Finished& agent : {led, cut_off}) EXPECT_EQ(agent.code, kExitError) << agent.output;
  EXPECT_NE(led.output.find("came from ranks 2 and 3"), std::string::npos) << led.output;
  EXPECT_NE(cut_off.output.find("came from ranks 0 and 1"), std::string::npos) << cut_off.output;
  const Finished verified = ring({"checkpoint", "verify", path("nodes")});
  EXPECT_EQ(verified.code, 0) << verified.output;
}

// By default, silence between hosts counts after 30 s.
TEST_P(DistNodesLaunched, AWireCutForFiveSecondsHeals) {
  ASSERT_NO_FATAL_FAILURE(run_locally("local"));
  const auto first = launch(0, "nodes", {}, {}), second = launch(1, "nodes", {}, {});
  ASSERT_TRUE(reaches("nodes", 7)) << (first->signal(SIGKILL), first->wait().output);
  set_wire("down");
  const std::size_t before = records("nodes");
  std::this_thread::sleep_for(std::chrono::seconds(5));
  EXPECT_LE(records("nodes"), before + 1) << "nothing went on meanwhile";
  set_wire("up");
  for (const auto& agent : {&first, &second}) {
    const Finished f = (*agent)->wait();
    EXPECT_EQ(f.code, 0) << f.output;
    EXPECT_EQ(f.output.find("starting all workers again"), std::string::npos) << f.output;
  }
  EXPECT_EQ(losses("nodes"), losses("local"));
  EXPECT_EQ(tensors("nodes", kLast), tensors("local", kLast));
}

}  // namespace
}  // namespace ring
