// `ringmaster checkpoint reshard`, `prune` and `diff`, run as by a user.

#include <cmath>
#include <cstdio>

#include "checkpoint/compare.h"
#include "checkpoint/prune.h"
#include "checkpoint/reshard.h"
#include "tests/checkpoint/fixture.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

Finished run_checkpoint_command(std::vector<std::string> words) {
  words.insert(words.begin(), {ring_binary(), "checkpoint"});
  return run_process(words);
}

void flip_a_byte(const fs::path& file, std::streamoff at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  const int old = (f.seekg(at), f.get());
  f.seekp(at).put(static_cast<char>(old ^ 1));
}

class Tools : public testing::Test {
 protected:
  fs::path folder() const { return temp_.path() / "checkpoints"; }
  std::string path(const std::string& name) const { return (temp_.path() / name).string(); }
  TempFolder temp_;
};

TEST_F(Tools, ReshardKeepsEveryBitForAnyNumberOfRanks) {
  const fs::path source = write_small(folder(), 10);
  fs::path before = source;
  for (const int ranks : {3, 1, 40, 2}) {  // each from the one before; more ranks than any tensor has rows
    const std::string output = path(str("as-", ranks));
    const Finished f =
        run_checkpoint_command({"reshard", before.string(), "--output", output, "--ranks", std::to_string(ranks)});
    ASSERT_EQ(f.code, 0) << f.output;
    before = fs::path(output) / checkpoint_name(10);
    const Manifest m = read_manifest(before);
    EXPECT_EQ(m.world, ranks);
    EXPECT_EQ(m.files.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(verify_checkpoint(before), std::vector<std::string>{});
    SmallState loaded(0);
    load_state(before, loaded.state, stream());
    EXPECT_TRUE(loaded.equals(SmallState(10))) << ranks;
    EXPECT_EQ(m.metadata, read_manifest(source).metadata);
    for (const auto& [name, t] : m.tensors)
      EXPECT_EQ(t.slices.size(), t.global_shape.numel() == 0 || t.global_shape.size() == 0
                                     ? 1u
                                     : static_cast<std::size_t>(std::min<std::int64_t>(ranks, t.global_shape[0])))
          << name;
  }
}

TEST_F(Tools, ReshardRefusesDamageAndAnExistingFolder) {
  const fs::path source = write_small(folder(), 10);
  const std::string output = path("out");
  ASSERT_EQ(run_checkpoint_command({"reshard", source.string(), "--output", output, "--ranks", "2"}).code, 0);
  const Finished again = run_checkpoint_command({"reshard", source.string(), "--output", output, "--ranks", "2"});
  EXPECT_EQ(again.code, 1);
  EXPECT_TRUE(contains(again.output, "already exists")) << again.output;
  flip_a_byte(source / "shard-00000.h5",
              static_cast<std::streamoff>(read_manifest(source).tensors.at("model.norm").slices[0].offset));
  const Finished damaged =
      run_checkpoint_command({"reshard", source.string(), "--output", path("none"), "--ranks", "2"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_TRUE(contains(damaged.output, "tensor 'model.norm' are damaged")) << damaged.output;
  EXPECT_FALSE(fs::exists(path("none")));
}

TEST_F(Tools, PruneKeepsByRuleAndNeverRemovesTheNewestWholeOne) {
  for (const int step : {10, 20, 30, 40, 50}) write_small(folder(), step);
  const std::string run = temp_.path().string();
  const Finished dry = run_checkpoint_command({"prune", run, "--keep-last", "2", "--keep-every", "20", "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.output;
  for (const int step : {10, 30})
    EXPECT_TRUE(contains(dry.output, "would remove  " + (folder() / checkpoint_name(step)).string()));
  EXPECT_EQ(steps(folder()).size(), 5u);
  EXPECT_EQ(run_checkpoint_command({"prune", run, "--keep-last", "2", "--keep-every", "20"}).code, 0);
  EXPECT_EQ(steps(folder()), (std::vector<std::int64_t>{20, 40, 50}));
  EXPECT_EQ(run_checkpoint_command({"prune", run, "--steps", "20"}).code, 0);
  EXPECT_EQ(steps(folder()), (std::vector<std::int64_t>{40, 50}));
  for (const auto& [words, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--steps", "40,50"}, "is the newest whole one"},
           {{"--steps", "7"}, "no checkpoint of step 7"},
           {{}, "Give --keep-last N"},
           {{"--keep-every", "3"}, "--keep-every works only with --keep-last"}}) {
    std::vector<std::string> all = {"prune", run};
    all.insert(all.end(), words.begin(), words.end());
    const Finished f = run_checkpoint_command(all);
    EXPECT_EQ(f.code, 1) << part;
    EXPECT_TRUE(contains(f.output, part)) << f.output;
  }
  EXPECT_EQ(steps(folder()), (std::vector<std::int64_t>{40, 50}));
}

// The checkpoint that a run would resume from is older than a damaged one.
TEST_F(Tools, PruneCountsOnlyWholeCheckpoints) {
  for (const int step : {10, 20, 30}) write_small(folder(), step);
  fs::remove(folder() / checkpoint_name(30) / "shard-00000.h5");
  EXPECT_EQ(run_checkpoint_command({"prune", folder().string(), "--keep-last", "1"}).code, 0);
  EXPECT_EQ(steps(folder()), (std::vector<std::int64_t>{20, 30}));
  EXPECT_EQ(run_checkpoint_command({"prune", folder().string(), "--steps", "20"}).code, 1);
  EXPECT_EQ(run_checkpoint_command({"prune", folder().string(), "--steps", "30"}).code, 0);
  EXPECT_EQ(steps(folder()), (std::vector<std::int64_t>{20}));
  const Finished one = run_checkpoint_command({"prune", (folder() / checkpoint_name(20)).string(), "--keep-last", "1"});
  EXPECT_EQ(one.code, 1);
  EXPECT_TRUE(contains(one.output, "got a single checkpoint")) << one.output;
}

fs::path write_pair(const fs::path& folder, std::int64_t step, float value, const std::string& lr) {
  Tensor same = filled({8}, DType::f32, 3), weight = Tensor::zeros({2, 3}, DType::f32, stream());
  weight.data<float>()[4] = value;
  if (std::isnan(value)) weight.data<float>()[5] = 2;  // a finite difference after the NaN
  State state;
  state.add("same", same);
  state.add("weight", weight);
  if (step > 1) state.add("more", same);
  state.add("train.step", &step);
  const std::string metadata = R"({"config":"optimizer:\n  lr: )" + lr + R"(\n"})";
  return write_checkpoint(folder, step, state.snapshot(stream()), metadata, {100, 0});
}

TEST_F(Tools, DiffNamesTensorsValuesAndSettings) {
  const std::string a = write_pair(folder(), 1, 1.5f, "0.1").string();
  const std::string b = write_pair(folder(), 2, -2, "0.2").string();
  const Finished same = run_checkpoint_command({"diff", a, a});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(same.output, "0 tensors of 2 differ\n");
  const Finished f = run_checkpoint_command({"diff", a, b});
  EXPECT_EQ(f.code, 1);
  for (const char* part : {"settings: optimizer.lr: 0.1 -> 0.2\n", "value train.step: 1 and 2\n",
                           "tensor more: only in the second\n", "tensor weight: 1 element differs, by at most 3.5\n",
                           "2 tensors differ; the first checkpoint has 2, the second 3\n"})
    EXPECT_TRUE(contains(f.output, part)) << part << " in " << f.output;
  EXPECT_FALSE(contains(f.output, "tensor same")) << f.output;
}

TEST_F(Tools, DiffMayCompareTensorsAlone) {
  const std::string a = write_pair(folder(), 1, 1.5f, "0.1").string();
  const std::string other = write_pair(temp_.path() / "b", 1, 1.5f, "0.2").string();
  EXPECT_EQ(run_checkpoint_command({"diff", a, other}).code, 1);
  const Finished same = run_checkpoint_command({"diff", a, other, "--tensors"});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(same.output, "0 tensors of 2 differ\n");
  const std::string b = write_pair(folder(), 2, -2, "0.1").string();
  const Finished f = run_checkpoint_command({"diff", a, b, "--tensors"});
  EXPECT_EQ(f.code, 1);
  EXPECT_TRUE(contains(f.output, "tensor weight: 1 element differs")) << f.output;
  EXPECT_FALSE(contains(f.output, "train.step")) << f.output;
}

TEST_F(Tools, DiffSeesANan) {
  const fs::path a = write_pair(folder(), 1, 1, "1"), b = write_pair(temp_.path() / "b", 1, NAN, "1");
  const CheckpointDifference d = compare_checkpoints(a, read_manifest(a), b, read_manifest(b));
  ASSERT_EQ(d.tensors.size(), 1u);
  EXPECT_TRUE(std::isnan(d.tensors[0].largest));
  EXPECT_TRUE(compare_checkpoints(b, read_manifest(b), b, read_manifest(b)).none());
}

}  // namespace
}  // namespace ring::test
