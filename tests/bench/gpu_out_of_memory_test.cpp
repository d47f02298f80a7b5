// A process without other users of its GPU runs out of memory in a step, and continues with less memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bench/step.h"
#include "core/fields.h"
#include "kernels/tuning.h"
#include "tests/bench/refusing.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

class GpuOutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    folder_ = std::filesystem::temp_directory_path() / ("ringmaster-gpu-memory-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct Result {
    std::vector<double> losses;
    std::vector<std::uint8_t> states;
    std::int64_t allocations = 0, micro_batch = 0;
    std::string ran_out;
  };
  // Trains 4 steps of a small model. Allocation `nth` is refused; 0 refuses none.
  Result train(std::vector<std::string> overrides, std::int64_t nth) const {
    overrides.insert(overrides.begin(),
                     {"run.device=cuda", "run.tuning=" + (folder_ / "tuning.yaml").string(), "model.context=128",
                      "model.width=128", "model.layers=3", "model.vocab_size=300", "model.dropout=0.1",
                      "train.batch_size=8", "train.micro_batch=4", "train.steps=1000", "train.cuda_graph=off"});
    Config config;
    load_config(config, source_dir() + "/configs/nanogpt_cpu.yaml", overrides);
    Result result;
    const Refusing one(nth);
    StepBenchmark bench(config);
    Trainer& trainer = bench.trainer();
    for (int step = 0; step < 4; ++step) result.losses.push_back(trainer.step().loss);
    result.allocations = allocations;
    result.micro_batch = trainer.memory().micro_batch;
    result.ran_out = trainer.latest_oom_text();
    State state;
    trainer.add_state(state);
    const Snapshot snapshot = state.snapshot(bench.exec().stream);
    snapshot.wait();
    for (const auto& [name, t] : snapshot.tensors()) {
      const auto* const begin = reinterpret_cast<const std::uint8_t*>(t.local.raw());
      result.states.insert(result.states.end(), begin, begin + t.local.bytes());
    }
    return result;
  }
  template <class Expect>
  void refuse_any(const std::vector<std::string>& settings, const Expect& expect) const {
    train(settings, 0);  // measures kernels
    const Result calm = train(settings, 0);
    ASSERT_GT(calm.allocations, 300);
    std::mt19937 random = random_of_environment();
    for (int i = 0; i < events_of_environment(5); ++i) {
      const std::int64_t nth = 1 + static_cast<std::int64_t>(random()) % calm.allocations;
      const Result result = train(settings, nth);
      SCOPED_TRACE(str("allocation ", nth, " of ", calm.allocations, ": ", result.ran_out));
      EXPECT_FALSE(result.ran_out.empty());
      expect(calm, result);
    }
  }

  std::filesystem::path folder_;
};

TEST_F(GpuOutOfMemory, AnyAllocationGivesTheSameBits) {
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"train.recompute=auto"},
        {"train.recompute=auto", "train.activation_offload=auto", "train.activation_offload_bytes=1e9"},
        {"train.recompute=auto", "optimizer.offload=all", "optimizer.offload_chunk_bytes=100000"}})
    refuse_any(settings, [](const Result& calm, const Result& result) {
      EXPECT_EQ(result.losses, calm.losses);
      EXPECT_EQ(result.states, calm.states);
      EXPECT_EQ(result.micro_batch, calm.micro_batch);
    });
}

TEST_F(GpuOutOfMemory, FewerSequencesAtATimeAgree) {
  refuse_any({"train.recompute=none", "train.activation_offload=false", "train.precision=fp32"},
             [](const Result& calm, const Result& result) {
               EXPECT_LT(result.micro_batch, calm.micro_batch);
               for (std::size_t i = 0; i < calm.losses.size(); ++i)
                 EXPECT_NEAR(result.losses[i], calm.losses[i], 1e-6 * calm.losses[i]) << "step " << i + 1;
             });
}

}  // namespace
}  // namespace ring::test
