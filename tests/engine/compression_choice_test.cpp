// `parallel.compress: auto` on one node and on several nodes, which are emulated: ranks are threads of this process.
#include "engine/compression_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "comm/gloo/gloo.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "job/store.h"
#include "parallel/plan.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

// Returns the settings of `parallel` that each rank has after the choice.
std::vector<ParallelConfig> choose_code_on_nodes(int nodes, int per_node, const std::string& compress) {
  const int world = nodes * per_node;
  const StoreServer server({"127.0.0.1", 0}, "compression");
  std::vector<ParallelConfig> chosen(static_cast<std::size_t>(world));
  std::vector<std::string> errors(chosen.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        WorkerEnvironment env;
        env.rank = rank;
        env.world = env.local_world = world;
        env.store = server.endpoint();
        env.cookie = "compression";
        Config c;
        override_config(c,
                        {"data.path=none", "run.directory=none", "run.device=cpu", "run.threads=1",
                         str("train.batch_size=", world), str("parallel.dp=", world), "parallel.compress=" + compress});
        ParallelPlan plan;
        plan.dp = world;
        MeshLayout layout = mesh_layout(plan, {});
        layout.emulate_nodes = per_node;
        const auto mesh = Mesh::join(env, {}, layout);
        choose_compression(c, *mesh, true);
        chosen[static_cast<std::size_t>(rank)] = c.parallel;
        mesh->host().barrier().synchronize();
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(test::joined(errors), "");
  return chosen;
}

class DistCompressionChoice : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

TEST_F(DistCompressionChoice, OneNodeIsNotCompressed) {
  for (const ParallelConfig& c : choose_code_on_nodes(1, 2, "auto")) {
    EXPECT_EQ(c.compress, GradientCompression::none);
    EXPECT_EQ(c.chosen, std::vector<std::string>{"compress"});
    EXPECT_FALSE(c.is_open(4)) << "the layout is not chosen by auto";
  }
}

// What is chosen depends on the machine, but all ranks choose the same.
TEST_F(DistCompressionChoice, RanksOfSeveralNodesAgree) {
  const std::vector<ParallelConfig> chosen = choose_code_on_nodes(2, 2, "auto");
  for (const ParallelConfig& c : chosen) {
    EXPECT_EQ(c.compress, chosen[0].compress);
    EXPECT_TRUE(c.compress == GradientCompression::none || c.compress == GradientCompression::int8);
    EXPECT_EQ(c.chosen, std::vector<std::string>{"compress"});
  }
}

TEST_F(DistCompressionChoice, GivenCodesStay) {
  for (const ParallelConfig& c : choose_code_on_nodes(2, 1, "fp8")) {
    EXPECT_EQ(c.compress, GradientCompression::fp8);
    EXPECT_TRUE(c.chosen.empty());
  }
}

}  // namespace
}  // namespace ring
