// `parallel.compress: auto` on one node and on several nodes, which are emulated: ranks are threads of this process.
#include "engine/compression_choice.h"

#include <gtest/gtest.h>

#include "comm/gloo/gloo.h"
#include "core/fields.h"
#include "parallel/plan.h"
#include "tests/comm/mesh_ranks.h"

namespace ring {
namespace {

// Returns the settings of `parallel` that each rank has after the choice.
std::vector<ParallelConfig> choose_code_on_nodes(int nodes, int per_node, const std::string& compress) {
  Config asked;
  ParallelPlan plan;
  plan.dp = nodes * per_node;
  override_config(asked,
                  {"data.path=none", "run.directory=none", "run.device=cpu", "run.threads=1",
                   str("train.batch_size=", plan.dp), str("parallel.dp=", plan.dp), "parallel.compress=" + compress});
  MeshLayout layout = mesh_layout(plan, {});
  layout.emulate_nodes = per_node;
  std::vector<ParallelConfig> chosen(static_cast<std::size_t>(plan.dp));
  EXPECT_EQ(test::run_mesh(layout,
                           [&](Mesh& mesh) {
                             Config c = asked;
                             choose_compression(c, mesh, true);
                             chosen[static_cast<std::size_t>(mesh.rank())] = c.parallel;
                           }),
            "");
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
