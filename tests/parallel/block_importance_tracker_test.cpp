// Measurements of block importance that travel between two ranks: no rank waits for them, and ranks that chose
// different blocks are detected.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "comm/gloo/gloo.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "engine/memory_choice.h"
#include "engine/resolve.h"
#include "job/store.h"
#include "model/attention/importance/block_importance_tracker.h"
#include "model/patterns.h"
#include "tests/late_stream.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

// A rank's part of a run that measures in every step. The first step is loaded but has not run.
struct LoadedRank {
  Config asked, config;
  std::unique_ptr<Mesh> mesh;
  ExecContext ctx;
  Loader loader;
  TrainStep step;

  LoadedRank(const Config& c, const WorkerEnvironment& env)
      : asked(c),
        config(c),
        mesh(Mesh::join(env, {}, mesh_layout(plan_of(asked, env.world), {}))),
        ctx(make_exec_context(config = resolve_config(asked, 257, *mesh))),
        loader(open_corpora(config.data), loader_options(config, *mesh)),
        step(config, ctx, *mesh, ActivationPlan::uniform(config.model.layers, Recompute::none), 0, false) {
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < step.micro_batches(); ++i) batches.push_back(step.cp_batches().part(loader.next()));
    step.load(batches);
  }
};

// Trackers of a run. The model's own trackers are unused here, since there is no trainer.
struct Attached : BlockImportanceTracker {
  explicit Attached(LoadedRank& r) : BlockImportanceTracker(r.step.model(), patterns_of(r.config.model)) {
    attach(r.step.make_step_access());
  }
};

class DistImportantBlocks : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    folder_ = std::filesystem::temp_directory_path() / str("ringmaster-important-", getpid());
    std::filesystem::create_directories(folder_);
    write_documents((folder_ / "c.h5").string(), 60, 6, [](std::uint64_t) { return 600; });
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Config config() const {
    Config c = tiny_config();
    override_config(c, {"run.threads=1", "data.prefetch=0", "data.path=" + (folder_ / "c.h5").string(),
                        "model.context=512", "train.batch_size=4", "train.micro_batch=2",
                        "model.attention={kind: block_sparse, block: 64, rules: [{pattern: importance, keep: 3, "
                        "interval: 4}]}",
                        more_});
    return c;
  }
  // Returns each rank's error; "" if it did not throw.
  std::vector<std::string> on_two_ranks(const std::function<void(LoadedRank&)>& fn) const {
    const std::string cookie = random_cookie();
    const StoreServer server({"127.0.0.1", 0}, cookie);
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        WorkerEnvironment env;
        env.rank = env.local_rank = rank, env.world = env.local_world = 2;
        env.store = server.endpoint(), env.cookie = cookie;
        try {
          LoadedRank r(config(), env);
          fn(r);
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(rank)] = e.what();
        }
      });
    for (std::thread& t : threads) t.join();
    return errors;
  }

  std::filesystem::path folder_;
  std::string more_ = "parallel.cp=1";
};

// If rank 0 waited for rank 1's measurement, both would wait forever.
TEST_F(DistImportantBlocks, NobodyWaitsForAMeasurement) {
  std::promise<void> first_continued;
  std::future<void> continued = first_continued.get_future();
  const std::vector<std::string> errors = on_two_ranks([&](LoadedRank& r) {
    Attached blocks(r);
    if (r.mesh->rank() == 1) {
      EXPECT_EQ(continued.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    EXPECT_FALSE(blocks.before_step(1));
    const BlockImportance& layer = blocks.layers()[0];
    EXPECT_LT(layer.averages().data<float>()[0], 0) << "not there yet";
    if (r.mesh->rank() == 0) first_continued.set_value();
    EXPECT_FALSE(blocks.before_step(2));
    EXPECT_GT(layer.averages().data<float>()[0], 0) << "taken ahead of the next one";
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST_F(DistImportantBlocks, ASnapshotContainsTheMeasurements) {
  const std::vector<std::string> errors = on_two_ranks([&](LoadedRank& r) {
    Attached blocks(r);
    blocks.before_step(1);
    blocks.prepare_for_copy(r.ctx.stream);
    EXPECT_GT(blocks.layers()[0].averages().data<float>()[0], 0);
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

// A save may still copy the layers' scores when the next step chooses blocks.
TEST_F(DistImportantBlocks, ASaveCopiesScoresBeforeTheyChange) {
  const std::vector<std::string> errors = on_two_ranks([&](LoadedRank& r) {
    Attached blocks(r);
    blocks.before_step(1);
    const Stream copies = late_stream();
    blocks.prepare_for_copy(copies);
    const Tensor& scores = blocks.layers()[0].scores();
    const std::vector<float> kept(scores.data<float>(), scores.data<float>() + scores.numel());
    std::vector<float> copied(kept.size());
    copies.impl().copy(copied.data(), scores.raw(), scores.bytes());
    EXPECT_TRUE(blocks.before_step(4));
    copies.synchronize();
    EXPECT_EQ(copied, kept);
    EXPECT_NE(std::vector<float>(scores.data<float>(), scores.data<float>() + scores.numel()), kept);
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

// The case of a rollback to a checkpoint from before the run's layers kept blocks by importance.
TEST_F(DistImportantBlocks, AreResetIfACheckpointLacksThem) {
  const std::vector<std::string> errors = on_two_ranks([&](LoadedRank& r) {
    Attached blocks(r);
    BlockImportance &first = blocks.layers()[0], &second = blocks.layers()[1];
    const auto values = [](const Tensor& t) { return std::vector(t.data<float>(), t.data<float>() + t.numel()); };
    const std::vector<float> empty = values(first.averages()), newest = values(first.scores());
    for (const std::int64_t step : {1, 2}) blocks.before_step(step);
    const std::vector<float> measured = values(first.averages()), others = values(second.averages());
    EXPECT_NE(measured, empty);
    EXPECT_TRUE(blocks.before_step(4));
    EXPECT_NE(values(first.scores()), newest);
    blocks.prepare_for_copy(r.ctx.stream);  // called by a load as well
    blocks.begin({"importance.blocks.0.averages", "importance.blocks.0.scores"});
    EXPECT_EQ(values(first.averages()), empty);
    EXPECT_EQ(values(first.scores()), newest);
    EXPECT_NE(values(second.averages()), empty) << "the checkpoint has those";
    EXPECT_FALSE(blocks.before_step(2)) << "no step is measured twice";
    EXPECT_EQ(values(first.averages()), empty);
    std::vector<std::string> all = {"importance.measured"};
    for (const char* layer : {"0", "1"})
      for (const char* tensor : {"averages", "scores"}) all.push_back(str("importance.blocks.", layer, ".", tensor));
    blocks.begin(all);
    EXPECT_TRUE(blocks.on_state_loaded());
    for (const std::int64_t step : {1, 2}) blocks.before_step(step);
    EXPECT_EQ(values(first.averages()), measured);
    EXPECT_EQ(values(second.averages()), others);
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST_F(DistImportantBlocks, RanksThatChoseDifferentBlocksAreDetected) {
  for (const char* layout :
       {"parallel.dp=2", "parallel.cp=2", "parallel={cp: 2, cp_schedule: ring}", "parallel.tp=2"}) {
    more_ = layout;
    const std::vector<std::string> errors = on_two_ranks([&](LoadedRank& r) {
      Attached blocks(r);
      blocks.before_step(1);
      if (r.mesh->rank() == 1) blocks.layers()[1].scores().data<float>()[5] = 7;
      blocks.before_step(2);
      blocks.before_step(3);
    });
    for (const std::string& e : errors)
      EXPECT_NE(e.find("rank 1 keeps different blocks"), std::string::npos) << layout << ": " << e;
  }
}

}  // namespace
}  // namespace ring::test
