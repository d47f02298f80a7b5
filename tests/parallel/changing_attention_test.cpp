// Changing selection of blocks by content: a number of blocks that changes with the trained tokens, and layers that
// reuse another layer's selection. Resumes, layouts, recomputation.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "comm/mesh/mesh.h"
#include "engine/devices.h"
#include "engine/resolve.h"
#include "tests/parallel/training.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

using Overrides = std::vector<std::string>;

// Steps have 1280 tokens, and samples have five blocks.
Overrides base(const Overrides& more) {
  Overrides all = {"model.context=320",
                   "model.layers=3",
                   "model.heads=8",
                   "model.kv_heads=4",
                   "model.head_dim=8",
                   "model.dropout=0.1",
                   "train.batch_size=4",
                   "train.micro_batch=2",
                   "model.attention.kind=block_sparse",
                   "model.attention.block=64",
                   "model.attention.heads=[0, 0, 1, 0]"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string keeping(const std::string& keep) {
  return "model.attention.rules=[{pattern: content, first: 1, keep: " + keep + "}, {local: 2}]";
}

Training trained(const Overrides& more, int steps, int ranks = 1, const std::string& load = "",
                 const std::string& save = "") {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = base(more);
  o.load = load;
  o.save = save;
  o.validate = true;
  Training t = train_on_ranks(o);
  EXPECT_EQ(t.errors, "");
  return t;
}

class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator()(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / ("ring_changing_" + std::to_string(getpid()));
};

void expect_same_on_ranks(const Overrides& more, int steps) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training one = trained(more, steps);
  for (const Layout& layout :
       {Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"zero3", 2, {"parallel.zero=3"}},
        Layout{"recomputed", 2, {"parallel.zero=1", "train.recompute=full"}}, Layout{"cp2", 2, {"parallel.cp=2"}},
        Layout{"cp4", 4, {"parallel.cp=4"}}, Layout{"cp2_tp2", 4, {"parallel.cp=2", "parallel.tp=2"}},
        Layout{"cp2_zero3", 4, {"parallel.cp=2", "parallel.zero=3"}},
        Layout{"cp2_recomputed", 2, {"parallel.cp=2", "train.recompute=full"}}}) {
    Overrides all = more;
    all.insert(all.end(), layout.overrides.begin(), layout.overrides.end());
    const Training many = trained(all, steps, layout.ranks);
    EXPECT_LE(largest_loss_difference(one, many), 1e-5) << layout.name;
    EXPECT_LE(largest_difference(one, many), 2e-3) << layout.name;
    EXPECT_LE(std::abs(one.validation - many.validation), 1e-5 * one.validation) << layout.name;
  }
}

void expect_same_recomputed(const Overrides& more, int steps) {
  Overrides none = more;
  none.push_back("train.recompute=none");
  const Training kept = trained(none, steps);
  for (const char* recompute : {"attention", "block", "full"}) {
    Overrides again = more;
    again.push_back(std::string("train.recompute=") + recompute);
    EXPECT_TRUE(same_bits(kept, trained(again, steps))) << recompute;
  }
}

// --- the number of blocks changes ---

const std::string kKeeps = "[[0, 5], [1280, 4], [2560, 3]]";

TEST(KeepSchedule, EqualsConsecutiveRunsWithConstantNumbers) {
  const Folder folder;
  const Training whole = trained({keeping(kKeeps)}, 4);
  const Training first = trained({keeping("5")}, 1, 1, "", folder("a")),
                 second = trained({keeping("4")}, 1, 1, first.checkpoint, folder("b")),
                 third = trained({keeping("3")}, 2, 1, second.checkpoint);
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  losses.insert(losses.end(), third.losses.begin(), third.losses.end());
  EXPECT_EQ(whole.losses, losses);
  EXPECT_EQ(whole.validation, third.validation);
  EXPECT_EQ(largest_difference(whole, third), 0);
  const Training constant = trained({keeping("5")}, 4);
  EXPECT_NE(constant.losses[1], whole.losses[1]) << "or the test would see no change";
  EXPECT_NE(constant.losses[2], whole.losses[2]);
}

// A change after the last step applies to the validation, as it does to a resumed run.
TEST(KeepSchedule, AValidationUsesTheNumberOfTheNextStep) {
  const Training after = trained({keeping("[[0, 5], [2560, 3]]")}, 2), never = trained({keeping("5")}, 2);
  EXPECT_EQ(after.losses, never.losses);
  EXPECT_NE(after.validation, never.validation);
}

TEST(KeepSchedule, KeepingAllBlocksIsDense) {
  const Training all = trained({"model.attention.rules=[{pattern: content, keep: [[0, 5], [2560, 3]]}]",
                                "model.attention.heads=[]"},
                               2),
                 dense = trained({"model.attention={kind: dense, block: 0, rules: [], heads: []}"}, 2);
  EXPECT_LE(largest_loss_difference(all, dense), 1e-5);
}

TEST(KeepSchedule, ResumesAcrossAChangeWithTheSameBits) {
  const Folder folder;
  const Training whole = trained({keeping(kKeeps)}, 4);
  for (const int steps : {1, 2, 3}) {
    const Training first = trained({keeping(kKeeps)}, steps, 1, "", folder("c")),
                   rest = trained({keeping(kKeeps)}, 4 - steps, 1, first.checkpoint);
    EXPECT_EQ(rest.losses, (std::vector<double>{whole.losses.begin() + steps, whole.losses.end()})) << steps;
    EXPECT_EQ(largest_difference(whole, rest), 0) << steps;
    EXPECT_EQ(whole.validation, rest.validation) << steps;
  }
}

TEST(DistKeepSchedule, IsTheSameOnSeveralRanks) { expect_same_on_ranks({keeping(kKeeps)}, 4); }
TEST(KeepSchedule, IsTheSameWithRecomputation) { expect_same_recomputed({keeping(kKeeps)}, 3); }

// Layers follow the schedules of their own sections.
TEST(KeepSchedule, AppliesPerLayer) {
  const std::string other =
      "model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, rules: [{pattern: content, "
      "keep: KEEP}]}}]";
  const auto with = [&](const std::string& keep) {
    std::string layers = other;
    return layers.replace(layers.find("KEEP"), 4, keep);
  };
  const Folder folder;
  const Training whole = trained({keeping("3"), with("[[0, 4], [1280, 2]]")}, 2);
  const Training first = trained({keeping("3"), with("4")}, 1, 1, "", folder("a")),
                 second = trained({keeping("3"), with("2")}, 1, 1, first.checkpoint);
  EXPECT_EQ(whole.losses, (std::vector<double>{first.losses[0], second.losses[0]}));
  EXPECT_EQ(largest_difference(whole, second), 0);
}

// --- layers share a selection ---

const std::string kShared = "model.attention.layers_per_selection=2", kKeep3 = keeping("3");

TEST(Reuse, GivesADifferentModel) {
  const Training shared = trained({kKeep3, kShared}, 2), alone = trained({kKeep3}, 2);
  EXPECT_NE(shared.losses, alone.losses);
  EXPECT_LT(shared.losses.back(), shared.losses.front());
}

// If every block is kept, all selections are equal.
TEST(Reuse, ChangesNothingIfAllBlocksAreKept) {
  EXPECT_TRUE(same_bits(trained({keeping("5"), kShared}, 2), trained({keeping("5")}, 2)));
}

TEST(DistReuse, IsTheSameOnSeveralRanks) {
  expect_same_on_ranks({kKeep3, kShared}, 4);
  expect_same_on_ranks({kKeep3, "model.attention.layers_per_selection=3", "data.packing.documents=true"}, 3);
}
TEST(Reuse, IsTheSameWithRecomputation) {
  expect_same_recomputed({kKeep3, kShared}, 3);
  expect_same_recomputed({kKeep3, "model.attention.layers_per_selection=3", "data.packing.documents=true"}, 3);
}

TEST(Reuse, ResumesFromACheckpointWithTheSameBits) {
  const Folder folder;
  const Overrides both = {keeping(kKeeps), kShared};
  const Training whole = trained(both, 4), first = trained(both, 2, 1, "", folder("d")),
                 rest = trained(both, 2, 1, first.checkpoint);
  EXPECT_EQ(rest.losses, (std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}));
  EXPECT_EQ(largest_difference(whole, rest), 0);
}

// --- CUDA graphs ---

constexpr const char* kCorpus = "a.h5";

struct Steps {
  std::vector<double> losses, norms;
  bool replayed = false;
};

// Runs 14 steps of 640 tokens. The first run measures kernels, and later runs in this folder use its choices.
Steps steps_on_gpu(const Folder& folder, const std::string& keep, const char* graph) {
  Config asked = tiny_config();
  override_config(asked, base({keeping(keep), kShared, graph, "data.path=" + folder(kCorpus), "train.batch_size=2",
                               "run.tuning=" + folder("tuning.yaml")}));
  asked.run.device = DeviceChoice::cuda;
  asked.train.precision = PrecisionChoice::fp32;
  const Config config = resolve_config(asked, 257);
  const ExecContext ctx = make_exec_context(config);
  const auto mesh = mesh_of_one();
  Loader loader(open_corpora(config.data), loader_options(config, *mesh));
  Trainer trainer(config, ctx, *mesh, loader);
  Steps steps;
  for (int i = 0; i < 14; ++i) {
    const StepReport r = trainer.step();
    steps.losses.push_back(r.loss);
    steps.norms.push_back(r.norm);
  }
  steps.replayed = trainer.replays_graph();
  return steps;
}

// A recording is made for one number of kept blocks. When the number changes, the step is recorded again.
TEST(GpuKeepSchedule, ARecordedStepFollowsIt) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  const Folder folder;
  const std::string changing = "[[0, 5], [3840, 3]]";  // from the seventh step on
  write_documents(folder(kCorpus), 60, 6, [](std::uint64_t) { return 400; });
  const Steps plain = steps_on_gpu(folder, changing, "train.cuda_graph=off"),
              replayed = steps_on_gpu(folder, changing, "train.cuda_graph=on"),
              constant = steps_on_gpu(folder, "5", "train.cuda_graph=on");
  EXPECT_TRUE(replayed.replayed);
  EXPECT_TRUE(constant.replayed);
  EXPECT_EQ(plain.losses, replayed.losses);
  EXPECT_EQ(plain.norms, replayed.norms);
  EXPECT_EQ(plain.losses[5], constant.losses[5]);
  EXPECT_NE(plain.losses[6], constant.losses[6]) << "or the test would see no change";
}

}  // namespace
}  // namespace ring::test
