// A snapshot holds the step before it, although the next step is launched while the snapshot is copied.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/state.h"
#include "checkpoint/writer.h"
#include "comm/mesh/mesh.h"
#include "core/devices.h"
#include "core/philox.h"
#include "engine/devices.h"
#include "tests/late_stream.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// A trainer, its dependencies and its state.
struct Training {
  Config config;
  ExecContext ctx = make_exec_context(config);
  std::unique_ptr<Mesh> mesh = mesh_of_one();
  Loader loader;
  Trainer trainer{config, ctx, *mesh, loader};
  State state;

  Training(const std::string& corpus, const Config& given)
      : config(resolve_config(given, 257)), loader(open_corpus(corpus), loader_options(config, *mesh)) {
    trainer.add_state(state);
  }
};

class TrainerSnapshot : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    write_documents(file(), 60, 6, [](std::uint64_t d) { return 30 + random_bits({7, 0, 0}, d) % 90; });
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file() const { return (folder_ / "a.h5").string(); }

  static std::string first_difference(const Snapshot& a, const Snapshot& b) {
    a.wait(), b.wait();
    for (const auto& [name, t] : a.tensors())
      if (std::memcmp(t.local.raw(), b.tensors().at(name).local.raw(), t.local.bytes()) != 0) return name;
    return "";
  }

  void expect_of_the_step_before(const Config& config) const {
    Training training(file(), config);
    Trainer& trainer = training.trainer;
    State& state = training.state;
    const ExecContext& ctx = training.ctx;
    for (int i = 0; i < 8; ++i) trainer.step();
    const bool replays = config.train.cuda_graph == Switch::on && ctx.stream.device().backend == Backend::cuda;
    EXPECT_EQ(trainer.replays_graph(), replays);
    for (int i = 0; i < 3; ++i) {
      const Snapshot at_once = state.snapshot(ctx.stream);  // queued right after the step
      state.wait_for_writes(ctx.stream);
      ctx.stream.synchronize();
      const Snapshot known = state.snapshot(ctx.stream);
      EXPECT_EQ(first_difference(known, at_once), "");
      const Snapshot beside = state.snapshot(ctx.stream);
      trainer.keep_state_until(beside.copied());
      trainer.launch();
      EXPECT_EQ(first_difference(known, beside), "");
      EXPECT_TRUE(trainer.finish().accepted);
      EXPECT_NE(first_difference(known, state.snapshot(ctx.stream)), "");
      EXPECT_EQ(trainer.replays_graph(), replays) << "the recording is kept, though this step was none of its replays";
    }
  }
  static std::map<std::string, StateValue> values_of(const State& state) {
    std::map<std::string, StateValue> values;
    for (const auto& [name, slot] : state.values())
      if (name != "train.seconds") values.emplace(name, read_slot(slot));
    return values;
  }
  // Finishes the same steps in one trainer, and settles them in another (Trainer::settle). Then settles steps that are
  // rejected because a weight is NaN.
  void expect_settled_steps_count(const Config& config, int launched) const {
    Training finished(file(), config), settled(file(), config);
    Trainer& trainer = settled.trainer;
    for (int i = 0; i < 3 + launched; ++i) finished.trainer.step();
    for (int i = 0; i < 3; ++i) trainer.step();
    for (int i = 0; i < launched; ++i) trainer.launch();
    ASSERT_TRUE(trainer.settle(std::chrono::seconds(60)));
    EXPECT_TRUE(trainer.is_state_whole());
    EXPECT_EQ(trainer.in_flight(), 0u);
    EXPECT_EQ(values_of(settled.state), values_of(finished.state));
    EXPECT_EQ(
        first_difference(settled.state.snapshot(settled.ctx.stream), finished.state.snapshot(finished.ctx.stream)), "");
    EXPECT_EQ(trainer.latest().step, 3 + launched);
    EXPECT_EQ(trainer.latest().loss, finished.trainer.latest().loss);
    EXPECT_EQ(trainer.earlier().step, 2 + launched);
    EXPECT_EQ(trainer.earlier().loss, finished.trainer.earlier().loss);
    poison_a_weight(settled);
    for (int i = 0; i < launched; ++i) trainer.launch();
    ASSERT_TRUE(trainer.settle(std::chrono::seconds(60)));
    EXPECT_TRUE(trainer.is_state_whole());
    EXPECT_EQ(values_of(settled.state), values_of(finished.state));
    EXPECT_EQ(trainer.latest().step, 0) << "a rejected step is not reported, and loading a state drops earlier reports";
  }
  static void poison_a_weight(Training& training) {
    const auto& all = training.state.tensors();
    const auto norm = std::ranges::find_if(
        all, [](const auto& t) { return t.first.starts_with("model.") && t.first.find("norm") != std::string::npos; });
    ASSERT_TRUE(norm != all.end() && norm->second.local.dtype() == DType::f32);
    const float nan = std::nanf("");
    training.ctx.stream.impl().upload(norm->second.local.raw(), &nan, sizeof nan);
    training.trainer.on_state_loaded();
  }
  // Returns a snapshot taken right after the last of several steps. In between, the state of the first step is loaded.
  std::map<std::string, std::vector<std::byte>> snapshot_after_steps(const Config& config) const {
    Training training(file(), config);
    Trainer& trainer = training.trainer;
    State& state = training.state;
    const ExecContext& ctx = training.ctx;
    trainer.step();
    const fs::path first = write_checkpoint((folder_ / str("saved", config.optimizer.offload_staging_bytes)).string(),
                                            1, state.snapshot(ctx.stream), "{}");
    for (int i = 0; i < 3; ++i) trainer.step();
    load_state(first, state, ctx.stream);
    trainer.on_state_loaded();
    for (int i = 0; i < 3; ++i) trainer.step();
    const Snapshot snapshot = state.snapshot(ctx.stream);
    snapshot.wait();
    std::map<std::string, std::vector<std::byte>> bytes;
    for (const auto& [name, t] : snapshot.tensors()) bytes[name] = {t.local.raw(), t.local.raw() + t.local.bytes()};
    return bytes;
  }
  fs::path folder_ = fs::temp_directory_path() / str("ringmaster-snapshot-", getpid());
};

TEST_F(TrainerSnapshot, IsOfTheStepBefore) { expect_of_the_step_before(tiny_config()); }
TEST_F(TrainerSnapshot, SettledStepsCountUnlessTheyAreRejected) { expect_settled_steps_count(tiny_config(), 1); }

Config with_states_on_the_host(Config config, std::int64_t chunk_bytes, std::int64_t ring) {
  config.optimizer.offload = StateOffload::all;
  config.optimizer.offload_chunk_bytes = chunk_bytes;
  config.optimizer.offload_staging_bytes = ring * chunk_bytes;
  return config;
}

TEST_F(TrainerSnapshot, OfStatesOnTheHostIsOfTheStepBefore) {
  for (const std::int64_t ring : {0, 7, 1000}) {
    const Config config = with_states_on_the_host(tiny_config(), 10'000, ring);
    expect_of_the_step_before(config);
    const LateCopies late;
    expect_of_the_step_before(config);
  }
}

TEST_F(TrainerSnapshot, HasWhatIsStillOnItsWayToTheHost) {
  const auto here = snapshot_after_steps(tiny_config());
  const LateCopies late;
  for (const std::int64_t ring : {0, 7, 1000})
    EXPECT_EQ(snapshot_after_steps(with_states_on_the_host(tiny_config(), 10'000, ring)), here) << "ring of " << ring;
}

// The model is so large that its copies take longer than a forward and a backward pass.
class GpuTrainerSnapshot : public TrainerSnapshot {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    TrainerSnapshot::SetUp();
  }
  static Config large(Switch graph) {
    Config config = tiny_config();
    config.run.device = DeviceChoice::cuda;
    config.run.tuning_seconds = 0.0001;
    config.model.width = 2048;
    config.model.heads = config.model.kv_heads = 16;
    config.model.mlp_width = 8192;
    config.train.cuda_graph = graph;
    return config;
  }
};

TEST_F(GpuTrainerSnapshot, IsOfTheStepBefore) { expect_of_the_step_before(large(Switch::off)); }
TEST_F(GpuTrainerSnapshot, SettledStepsCountUnlessTheyAreRejected) {
  for (const Switch graph : {Switch::off, Switch::on}) expect_settled_steps_count(large(graph), 2);
}
TEST_F(GpuTrainerSnapshot, IsOfTheStepBeforeAReplay) { expect_of_the_step_before(large(Switch::on)); }
TEST_F(GpuTrainerSnapshot, OfStatesOnTheHostIsOfTheStepBefore) {
  for (const Switch graph : {Switch::off, Switch::on})
    for (const std::int64_t ring : {0, 40, 100'000})
      expect_of_the_step_before(with_states_on_the_host(large(graph), 10'000'000, ring));
}

}  // namespace
}  // namespace ring::test
