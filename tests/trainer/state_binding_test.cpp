// The tensors that a checkpoint may lack, or have in addition, follow from the settings that it was saved with.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "engine/devices.h"
#include "engine/origin.h"
#include "tests/error_of.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

Config with_pooling(Pooling pooling) {
  Config c = tiny_config();
  c.model.attention.kind = "window";
  c.model.attention.window = 8;
  c.model.attention.pools = {4};
  c.model.attention.pooling = pooling;
  return c;
}

class StateBindingTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    write_documents((folder_ / "a.h5").string(), 60, 6, [](std::uint64_t) { return 60; });
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Calls `use` with the registered state of a new trainer.
  template <class Use>
  void with_state(const Config& given, const Use& use) const {
    const ResolvedConfig config = resolve_config(given, 257);
    const ExecContext ctx = make_exec_context(config);
    const std::unique_ptr<Mesh> mesh = mesh_of_one();
    Loader loader(open_corpus((folder_ / "a.h5").string()), loader_options(config, *mesh));
    Trainer trainer(config, ctx, *mesh, loader);
    State state;
    trainer.add_state(state);
    use(state, ctx.stream);
  }
  // Saves the state of a run with settings `is`, with metadata that claims the settings `says`.
  fs::path saved(const std::string& name, const Config& is, const Config& says) const {
    const std::string metadata = checkpoint_metadata(resolve_config(says, 257), {}, nullptr);
    fs::path path;
    with_state(is, [&](State& state, const Stream& stream) {
      path = write_checkpoint((folder_ / name).string(), 1, state.snapshot(stream), metadata);
    });
    return path;
  }
  // Returns the error of loading the checkpoint into a run with these settings; "" if it loads.
  std::string problem(const fs::path& checkpoint, const Config& config) const {
    std::string error;
    with_state(config, [&](State& state, const Stream& stream) {
      error = error_of([&] { load_state(checkpoint, state, stream); });
    });
    return error;
  }

  const Config means_ = with_pooling(Pooling::mean), learned_ = with_pooling(Pooling::learned);
  fs::path folder_ = fs::temp_directory_path() / str("ringmaster-binding-", getpid());
};

TEST_F(StateBindingTest, PoolsMayBeginAndCease) {
  EXPECT_EQ(problem(saved("means", means_, means_), learned_), "");
  EXPECT_EQ(problem(saved("learned", learned_, learned_), means_), "");
}

TEST_F(StateBindingTest, ACheckpointMustHaveTheTensorsOfItsSettings) {
  const std::string lost = problem(saved("lost", means_, learned_), learned_);
  for (const char* name : {"model.blocks.0.attention.pool.4.query", "optimizer.m.blocks.1.attention.pool.4.positions"})
    EXPECT_NE(lost.find(name), std::string::npos) << lost;
  const std::string foreign = problem(saved("foreign", learned_, means_), means_);
  EXPECT_NE(foreign.find("model.blocks.0.attention.pool.4.query"), std::string::npos) << foreign;
}

TEST_F(StateBindingTest, OtherWeightsMayNotDiffer) {
  Config deeper = means_;
  deeper.model.layers = 3;
  const std::string error = problem(saved("means", means_, means_), deeper);
  EXPECT_NE(error.find("model.blocks.2.attention.wq.weight"), std::string::npos) << error;
}

}  // namespace
}  // namespace ring::test
