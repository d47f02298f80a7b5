// `parallel: auto` on several nodes, which are emulated: ranks are threads of this process.

#include "engine/layout_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/gloo/gloo.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "tests/comm/mesh_ranks.h"

namespace ring {
namespace {

// Returns the settings of `parallel` that each rank has after the choice.
std::vector<ParallelConfig> choose_on_nodes(const Config& config, int nodes, int per_node) {
  MeshLayout open{.axes = {{kAxisBeforeChoice, nodes * per_node}}};
  open.emulate_nodes = per_node;
  std::vector<ParallelConfig> chosen(static_cast<std::size_t>(nodes * per_node));
  EXPECT_EQ(test::run_mesh(open,
                           [&](Mesh& mesh) {
                             Config c = config;
                             choose_layout(c, mesh, true);
                             chosen[static_cast<std::size_t>(mesh.rank())] = c.parallel;
                           }),
            "");
  return chosen;
}

class DistLayoutChoice : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    // Computation takes no time, and the links are slow, both inside a node and between nodes.
    DeviceRates r = shipped_rates("cpu", 1);
    r.fp32 = {1e17, 1e17, 1e17};
    r.bytes_per_second = 1e15;
    r.link_bytes_per_second = 1e6;
    r.node_link_bytes_per_second = 1e7;
    std::ofstream(rates_) << to_yaml(r);
  }
  void TearDown() override { std::filesystem::remove(rates_); }

  Config config(const std::vector<std::string>& more = {}) const {
    Config c;
    std::vector<std::string> all = {"data.path=none",      "train.steps=10",       "train.batch_size=1",
                                    "train.micro_batch=1", "model.vocab_size=256", "model.context=1024",
                                    "model.layers=1",      "model.width=64",       "model.heads=4",
                                    "model.kv_heads=4",    "run.device=cpu",       "train.memory_budget=4e9",
                                    "run.rates=" + rates_, "run.directory=none",   "parallel.dp=1",
                                    "parallel.cp=4",       "parallel.tp=1",        "parallel.zero=auto"};
    all.insert(all.end(), more.begin(), more.end());
    override_config(c, all);
    return c;
  }

  std::string rates_ = str("/tmp/layout_choice_", getpid(), ".yaml");
};

TEST_F(DistLayoutChoice, HybridIsChosenIfItIsFastest) {
  const std::vector<std::string> keys = {"zero", "cp_schedule"};
  for (const ParallelConfig& p : choose_on_nodes(config(), 2, 2)) {
    EXPECT_EQ(p.cp_schedule, ContextSchedule::hybrid);
    EXPECT_EQ(p.chosen, keys);
  }
  // A given schedule stays, and one node has no ring between nodes.
  for (const ParallelConfig& p : choose_on_nodes(config({"parallel.cp_schedule=ring"}), 2, 2)) {
    EXPECT_EQ(p.cp_schedule, ContextSchedule::ring);
    EXPECT_EQ(p.chosen, std::vector<std::string>{"zero"});
  }
  EXPECT_EQ(choose_on_nodes(config(), 1, 4)[0].cp_schedule, ContextSchedule::automatic);
}

// A run that chose hybrid continues with a different number of processes: the schedule is chosen again.
TEST_F(DistLayoutChoice, AChosenScheduleIsChosenAgain) {
  const Config c =
      config({"parallel={dp: 1, cp: 8, tp: 1, zero: 0, cp_schedule: hybrid, "
              "chosen: [cp, zero, cp_schedule]}"});
  for (const ParallelConfig& p : choose_on_nodes(c, 1, 2)) {
    EXPECT_EQ(p.cp, 2);
    EXPECT_EQ(p.cp_schedule, ContextSchedule::automatic);
    EXPECT_EQ(p.chosen, (std::vector<std::string>{"cp", "zero"}));
  }
}

}  // namespace
}  // namespace ring
