// Metadata of checkpoints about their origin.
#include "engine/origin.h"

#include <gtest/gtest.h>

#include "kernels/tuning.h"

namespace ring {
namespace {

TEST(CheckpointMetadata, RestoresMeasuredChoices) {
  Tuning then(""), now("");
  then.record("product", "first");
  then.record("attention", "cudnn");
  now.record("product", "second");
  now.record("loss", "own");
  EXPECT_EQ(adopt_kernel_choices(now, checkpoint_metadata({}, {}, &then)), 1u);  // product
  EXPECT_EQ(now.find("product"), "first");
  EXPECT_EQ(now.find("attention"), "cudnn");
  EXPECT_EQ(now.find("loss"), "own");
}

TEST(CheckpointMetadata, WithoutChoicesNothingChanges) {
  Tuning now("");
  now.record("product", "second");
  const std::uint64_t before = now.generation();
  EXPECT_EQ(adopt_kernel_choices(now, checkpoint_metadata({}, {}, nullptr)), 0u);
  EXPECT_EQ(now.find("product"), "second");
  EXPECT_EQ(now.generation(), before);
}

// Earlier versions accepted such settings, which are refused now if a user gives them.
TEST(CheckpointMetadata, SettingsWithoutEffectAreAccepted) {
  Config c;
  c.data.path = "a.h5";
  c.train.steps = 1;
  c.schedule.decay_steps = 400;
  c.optimizer.muon.momentum = 0.5;
  ASSERT_EQ(c.schedule.kind, ScheduleKind::cosine);
  const Config again = settings_in(checkpoint_metadata(c, {}, nullptr), "step-1");
  EXPECT_EQ(again.schedule.decay_steps, 400);
  EXPECT_EQ(again.optimizer.muon.momentum, 0.5);
}

}  // namespace
}  // namespace ring
