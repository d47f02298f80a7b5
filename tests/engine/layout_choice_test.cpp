// Tests what `parallel: auto` chooses again, and what it tells the launcher.

#include "engine/layout_choice.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/devices.h"
#include "job/worker_status.h"
#include "parallel/misfit.h"
#include "parallel/plan.h"

namespace ring {
namespace {

Config automatic(const std::vector<std::string>& more) {
  Config c;
  override_config(c, {"run.device=cpu", "run.threads=1", "run.directory=/nonexistent/run", "data.path=none",
                      "model.vocab_size=256", "model.context=64", "model.layers=2", "model.width=32", "model.heads=2",
                      "train.batch_size=2", "train.steps=1", "parallel=auto"});
  override_config(c, more);
  return c;
}

class LayoutChoice : public testing::Test {
 protected:
  void SetUp() override { own_status().misfit = 0; }
  void TearDown() override { own_status().misfit = 0; }

  // Chooses the layout for a run with a single process.
  static void choose(Config& c) {
    const std::unique_ptr<Mesh> mesh = join_mesh(c, {});
    choose_layout(c, *mesh, false);
  }
};

TEST_F(LayoutChoice, TellsTheLauncherThatADifferentNumberOfProcessesMayFit) {
  for (const char* setting : {"train.memory_budget=20000", "parallel.dp=3"}) {
    own_status().misfit = 0;
    Config c = automatic({setting});
    EXPECT_THROW(choose(c), WorldSizeError) << setting;
    EXPECT_EQ(own_status().misfit, 1) << setting;
  }
  own_status().misfit = 0;
  Config c = automatic({"model.vocab_size=0", "data.path=/nonexistent/corpus.h5"});
  EXPECT_THROW(choose(c), Error);
  EXPECT_EQ(own_status().misfit, 0) << "a missing corpus does not depend on the number of processes";
}

// The previous run had two processes, and `auto` chose its layout.
TEST_F(LayoutChoice, AChosenOffloadIsChosenAgain) {
  const std::vector<std::string> before = {"parallel={dp: 2, cp: 1, tp: 1, zero: 1}", "optimizer.offload=states"};
  const auto chosen = [&](const char* keys) {
    Config c = automatic(before);
    override_config(c, {keys});
    choose(c);
    EXPECT_EQ(c.parallel.dp, 1);
    return c;
  };
  const Config again = chosen("parallel.chosen=[dp, cp, tp, zero, offload]");
  EXPECT_EQ(again.optimizer.offload, StateOffload::none);
  EXPECT_EQ(again.parallel.chosen, (std::vector<std::string>{"dp", "cp", "tp", "zero"}));
  EXPECT_EQ(chosen("parallel.chosen=[dp, cp, tp, zero]").optimizer.offload, StateOffload::states) << "it was given";
}

}  // namespace
}  // namespace ring
