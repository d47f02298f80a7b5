// Runs the real program in layouts that shard the model or its sequences. A run in which a rank is killed or runs out
// of memory must be bit-identical to an undisturbed run.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/devices.h"
#include "tests/launcher/training.h"
#include "tests/layouts/matrix.h"
#include "tests/layouts/tuning.h"

namespace ring::test {
namespace {

// The cell in whose run a rank is killed or runs out of memory.
struct Disturbed {
  std::string kind, layout;
};

class LayoutRuns : public TrainingRuns {
 protected:
  void set_up(const Settings& shape, int ranks) {
    shape_ = shape;
    ranks_ = ranks;
  }
  // Trains 8 steps, with a save after the fourth.
  void train(const Disturbed& what, const std::string& directory, const std::string& faults = "") const {
    const std::vector<Kind> kinds = all_kinds();
    const std::vector<Layout> layouts = all_layouts(ranks_);
    const Cell cell{*std::ranges::find(kinds, what.kind, &Kind::name),
                    *std::ranges::find(layouts, what.layout, &Layout::name)};
    std::vector<std::string> words = launch(ranks_, directory);
    for (const Settings& some : {shape_, settings_of(cell)}) words.insert(words.end(), some.begin(), some.end());
    if (!faults.empty()) words.insert(words.begin() + 1, {"--inject", faults});
    ASSERT_EQ(run(words), 0) << log();
  }
  std::string log() const { return read_file(dir_ / "log"); }
  bool says(const std::string& text) const { return log().find(text) != std::string::npos; }
  void expect_calm(const std::string& directory) const {
    ASSERT_GE(losses("calm").size(), 8u);
    EXPECT_EQ(losses(directory), losses("calm")) << log();
    EXPECT_TRUE(shard(directory) == shard("calm")) << "the bytes of the checkpoints differ";
  }
  void kill_a_rank(const Disturbed& what) {
    train(what, "killed", str("7:kill@rank=", ranks_ - 1, ",step=6,phase=backward"));
    EXPECT_TRUE(says("was killed by signal 9")) << log();
    EXPECT_TRUE(says("restart 1 of this job")) << log();
    expect_calm("killed");
  }
  void run_out_of_memory(const Disturbed& what) {
    train(what, "out", "7:memory@rank=1,step=6,nth=40");
    EXPECT_TRUE(says("rank 1 ran out of memory")) << log();
    expect_calm("out");
    const auto recorded = nlohmann::json::parse(read_file(dir_ / "out/memory.json"));
    EXPECT_EQ(recorded.at("ran_out"), 1);
    EXPECT_GE(recorded.at("micro_batch"), 4) << "a smaller micro-batch would add in a different order";
  }
  void disturb(const Disturbed& what, bool memory) {
    SCOPED_TRACE(what.kind + " with " + what.layout);
    for (const char* directory : {"calm", "killed", "out"}) fs::remove_all(dir_ / directory);
    train(what, "calm");
    kill_a_rank(what);
    if (memory) run_out_of_memory(what);
  }

 private:
  Settings shape_;
  int ranks_ = 2;
};

// Sequences are so long that recomputing activations saves more than a tenth of the memory.
class GpuDistLayoutRuns : public LayoutRuns {
 protected:
  static Settings shape() {
    return {"run.device=cuda",    kTuning,         "model.context=1024", "model.layers=4",
            "model.width=256",    "model.heads=8", "model.head_dim=64",  "train.batch_size=16",
            "train.micro_batch=4"};
  }
  void disturb_all(int ranks) {
    if (device_count(Backend::cuda) < ranks) GTEST_SKIP() << "fewer than " << ranks << " GPUs";
    set_up(shape(), ranks);
    disturb({"content", "zero3"}, true);
    disturb({"importance", "cp_ring"}, true);
    disturb({"pools", ranks == 2 ? "tp" : "tp_cp_ring"}, false);
    disturb({"dilated", ranks == 2 ? "cp_chunks" : "tp_cp_chunks"}, false);
  }
};

TEST_F(GpuDistLayoutRuns, DisturbedRunsOfTwoGpusKeepTheirBits) { disturb_all(2); }
TEST_F(GpuDistLayoutRuns, DisturbedRunsOfFourGpusKeepTheirBits) { disturb_all(4); }

// With ZeRO-3 layers read weights that their owners quantized, with ZeRO-2 weights that each rank quantized.
TEST_F(GpuDistLayoutRuns, WeightsGatheredInFp8ChangeNoBit) {
  if (device_count(Backend::cuda) < 2) GTEST_SKIP() << "fewer than 2 GPUs";
  if (inspect_backend(Backend::cuda).devices[0].capability != 90) GTEST_SKIP() << "FP8 needs a Hopper GPU";
  for (const char* format : {"fp8_blocks", "fp8_tensor"}) {
    SCOPED_TRACE(format);
    Settings fp8 = shape();
    fp8.insert(fp8.end(), {str("train.linears=", format), "model.mlp_width=768"});
    set_up(fp8, 2);
    for (const char* directory : {"calm", "gathered"}) fs::remove_all(dir_ / directory);
    train({"dense", "zero2"}, "calm");
    train({"dense", "zero3"}, "gathered");
    ASSERT_GE(losses("calm").size(), 8u);
    EXPECT_EQ(losses("gathered"), losses("calm")) << log();
  }
}

class DistLayoutRuns : public LayoutRuns {};

TEST_F(DistLayoutRuns, ADisturbedRunKeepsItsBits) {
  set_up({"model.context=192", "model.layers=3", "model.heads=8", "model.head_dim=8", "train.batch_size=8",
          "train.micro_batch=4"},
         2);
  disturb({"learned", "cp_ring"}, true);
}

TEST_F(DistLayoutRuns, ADisturbedRunInSharedChunksKeepsItsBits) {
  set_up({"model.context=512", "model.layers=2", "model.heads=8", "model.head_dim=8", "train.batch_size=4"}, 2);
  disturb({"dilated", "cp_chunks"}, false);
}

}  // namespace
}  // namespace ring::test
