// Training steps on a GPU: the host does not wait, and options that must not change the numbers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "bench/step.h"
#include "core/devices.h"
#include "core/fields.h"
#include "kernels/tuning.h"
#include "tests/paths.h"

namespace ring::test {
namespace {

class GpuTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
    folder_ = std::filesystem::temp_directory_path() / ("ringmaster-gpu-training-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Losses and norms of 12 steps of a small model, and the bytes of its weights and optimizer states after them.
  struct Result {
    std::vector<double> losses, norms;
    std::vector<std::uint8_t> states;
    std::string choices;      // recorded by the run
    std::uint64_t waits = 0;  // times that the host waited in launch(), from the fifth step on
    bool replayed = false;
    std::size_t offloaded = 0;  // bytes of activations in the last micro-batch
    friend void PrintTo(const Result& r, std::ostream* out) {
      for (std::size_t i = 0; i < r.losses.size(); ++i) *out << (i ? ", " : "") << r.losses[i] << " / " << r.norms[i];
    }
    bool operator==(const Result& o) const { return losses == o.losses && norms == o.norms && states == o.states; }
  };
  Result train(std::vector<std::string> overrides) const {
    overrides.insert(overrides.begin(),
                     {"run.device=cuda", "run.tuning=" + (folder_ / "tuning.yaml").string(), "model.context=128",
                      "model.width=128", "model.layers=3", "model.vocab_size=300", "model.dropout=0.1",
                      "train.batch_size=8", "train.micro_batch=4", "train.steps=1000", "schedule.warmup_steps=2"});
    Config config;
    load_config(config, source_dir() + "/configs/nanogpt_cpu.yaml", overrides);
    StepBenchmark bench(config);
    Trainer& trainer = bench.trainer();
    Result result;
    const auto finish = [&] {
      const StepReport r = trainer.finish();
      EXPECT_TRUE(r.accepted);
      result.losses.push_back(r.loss);
      result.norms.push_back(r.norm);
    };
    for (int step = 0; step < 12; ++step) {
      const std::uint64_t before = host_wait_count();
      trainer.launch();
      if (step >= 4) result.waits += host_wait_count() - before;
      while (trainer.in_flight() > trainer.max_in_flight()) finish();
    }
    while (trainer.in_flight() > 0) finish();
    result.choices = bench.exec().tuning->text();
    State state;
    trainer.add_state(state);
    const Snapshot snapshot = state.snapshot(bench.exec().stream);  // queued right after the last step
    snapshot.wait();
    for (const auto& [name, t] : snapshot.tensors()) {
      const auto* const begin = reinterpret_cast<const std::uint8_t*>(t.local.raw());
      result.states.insert(result.states.end(), begin, begin + t.local.bytes());
    }
    result.replayed = trainer.replays_graph();
    if (trainer.offload()) result.offloaded = trainer.offload()->bytes().moved;
    return result;
  }

  std::filesystem::path folder_;
};

TEST_F(GpuTraining, AStepDoesNotMakeTheHostWait) {
  for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"})
    EXPECT_EQ(train({graph}).waits, 0u) << graph;
}

TEST_F(GpuTraining, TwoRunsGiveTheSameBits) {
  for (const char* precision : {"train.precision=bf16", "train.precision=fp32", "train.precision=tf32"}) {
    const Result measures = train({precision}), first = train({precision}), second = train({precision});
    EXPECT_EQ(first.choices, measures.choices) << precision << ": something was measured again";
    EXPECT_EQ(second.choices, measures.choices) << precision << ": something was measured again";
    EXPECT_EQ(measures, first) << precision;
    EXPECT_EQ(first, second) << precision;
  }
}

TEST_F(GpuTraining, AReplayedGraphGivesTheSameBits) {
  train({});
  const Result plain = train({"train.cuda_graph=off"}), replayed = train({"train.cuda_graph=on"});
  EXPECT_FALSE(plain.replayed);
  EXPECT_TRUE(replayed.replayed);
  EXPECT_EQ(plain, replayed);
}

const std::string kDocuments = "data.packing.documents=true";

// Documents begin at different positions in each step: attention is queued again between graphs.
TEST_F(GpuTraining, ReplayedStepsOfDocumentsGiveTheSameBits) {
  const std::vector<std::vector<std::string>> ways = {
      {kDocuments},
      {kDocuments, "data.packing.best_fit=64", "model.heads=1"},  // heads of 128 channels
      {kDocuments, "train.precision=fp32"},
      {kDocuments, "model.attention_dropout=0.1", "train.recompute=full"},
      {kDocuments, "model.attention={kind: window, window: 20, sinks: 2}", "train.recompute=attention"},
      {kDocuments, "model.attention={kind: window, window: 20, pools: [8]}"},
      {kDocuments, "model.attention={kind: window, window: 20, pools: [8, 12], pooling: learned, pool_gates: true}"},
      {kDocuments, "model.attention={kind: dilated, segments: [32, 64], rates: [1, 2]}", "data.packing.align=64"},
      {kDocuments, "model.attention={kind: block_sparse, block: 64, rules: [{local: 2, first: 1}]}",
       "model.context=512"},
      {"train.context=[[0, 32], [7168, 128]]"},  // longer sequences from the eighth step on
  };
  for (const std::vector<std::string>& way : ways) {
    const auto with = [&](const char* graph) {
      std::vector<std::string> settings = way;
      settings.push_back(str("train.cuda_graph=", graph));
      return train(settings);
    };
    const std::string name = way.back();
    with("off");  // measures kernels
    const Result plain = with("off"), replayed = with("on");
    EXPECT_FALSE(plain.replayed) << name;
    EXPECT_TRUE(replayed.replayed) << name;
    EXPECT_EQ(plain, replayed) << name;
    EXPECT_EQ(plain.choices, replayed.choices) << name << ": something was measured again";
  }
}

TEST_F(GpuTraining, StepsOfDocumentsWithTransfersOrSelectionsAreNotReplayed) {
  const std::string selects = "model.attention={kind: block_sparse, block: 64, rules: [{pattern: content, keep: 3}]}";
  for (const std::string& way :
       {std::string("train.activation_offload=true"), std::string("optimizer.offload=states"), selects}) {
    const auto with = [&](const char* graph) {
      return train({kDocuments, "model.context=512", way, str("train.cuda_graph=", graph)});
    };
    with("off");  // measures kernels
    const Result plain = with("off"), asked = with("on");
    EXPECT_FALSE(asked.replayed) << way;
    EXPECT_EQ(plain, asked) << way;
  }
}

TEST_F(GpuTraining, RecomputationGivesTheSameBits) {
  for (const char* precision : {"train.precision=bf16", "train.precision=fp32"}) {
    train({precision});
    const Result kept = train({precision});
    EXPECT_EQ(kept, train({precision, "train.recompute=attention"})) << precision;
    EXPECT_EQ(kept, train({precision, "train.recompute=mlp"})) << precision;
    EXPECT_EQ(kept, train({precision, "train.recompute=block"})) << precision;
    EXPECT_EQ(kept, train({precision, "train.recompute=full"})) << precision;
  }
}

TEST_F(GpuTraining, OffloadedActivationsGiveTheSameBits) {
  for (const char* precision : {"train.precision=bf16", "train.precision=fp32"})
    for (const char* recompute : {"train.recompute=none", "train.recompute=block"}) {
      train({precision, recompute});
      const Result kept = train({precision, recompute, "train.cuda_graph=off"});
      for (const bool graph : {false, true}) {
        const Result moved = train({precision, recompute, "train.activation_offload=true",
                                    graph ? "train.cuda_graph=on" : "train.cuda_graph=off"});
        EXPECT_EQ(kept, moved) << precision << ", " << recompute << ", graph " << graph;
        EXPECT_GT(moved.offloaded, 0u);
        EXPECT_EQ(moved.waits, 0u);
        EXPECT_EQ(moved.replayed, graph);
      }
    }
}

TEST_F(GpuTraining, OffloadedStatesGiveTheSameBits) {
  for (const char* precision : {"train.precision=bf16", "train.precision=fp32"}) {
    train({precision});
    const Result here = train({precision, "train.cuda_graph=off"});
    for (const char* offload : {"optimizer.offload=states", "optimizer.offload=all"})
      for (const auto& [chunk, staging] :
           {std::pair{"100000", "0"}, {"100000", "1000000"}, {"100000", "auto"}, {"67108864", "0"}})
        for (const bool graph : {false, true}) {
          const Result away = train({precision, offload, str("optimizer.offload_chunk_bytes=", chunk),
                                     str("optimizer.offload_staging_bytes=", staging),
                                     graph ? "train.cuda_graph=on" : "train.cuda_graph=off"});
          EXPECT_EQ(here, away) << precision << ", " << offload << ", " << chunk << " of " << staging << ", graph "
                                << graph;
          EXPECT_EQ(away.waits, 0u);
          EXPECT_EQ(away.replayed, graph);
        }
  }
}

TEST_F(GpuTraining, WeightsOnTheHostGiveTheSameBits) {
  for (const char* precision : {"train.precision=bf16", "train.precision=fp32"}) {
    train({precision});
    const Result here = train({precision, "train.cuda_graph=off"});
    for (const auto& [chunk, staging] : {std::pair{"100000", "0"}, {"100000", "1000000"}, {"67108864", "auto"}}) {
      const Result away = train({precision, "optimizer.offload=weights", str("optimizer.offload_chunk_bytes=", chunk),
                                 str("optimizer.offload_staging_bytes=", staging)});
      EXPECT_EQ(here, away) << precision << ", " << chunk << " of " << staging;
      EXPECT_EQ(away.waits, 0u);
      EXPECT_FALSE(away.replayed);
    }
  }
}

TEST_F(GpuTraining, OffloadedStatesInBf16GiveTheSameBits) {
  const std::vector<std::string> types = {"optimizer.moments=bf16", "optimizer.gradients=bf16"};
  for (const char* master : {"optimizer.master=fp32", "optimizer.master=bf16"}) {
    std::vector<std::string> how = types;
    how.emplace_back(master);
    train(how);
    const Result here = train(how);
    how.insert(how.end(), {"optimizer.offload=all", "optimizer.offload_chunk_bytes=50000"});
    EXPECT_EQ(here, train(how)) << master;
    how.emplace_back("optimizer.offload_staging_bytes=500000");
    EXPECT_EQ(here, train(how)) << master;
  }
}

TEST_F(GpuTraining, OffloadedStatesInFp8GiveTheSameBits) {
  for (const char* kind : {"optimizer.kind=adamw", "optimizer.kind=muon"}) {
    std::vector<std::string> how = {"optimizer.moments=fp8", kind};
    train(how);
    const Result here = train(how);
    how.insert(how.end(), {"optimizer.offload=states", "optimizer.offload_chunk_bytes=50000"});
    for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"}) {
      std::vector<std::string> with_graph = how;
      with_graph.emplace_back(graph);
      EXPECT_EQ(here, train(with_graph)) << kind << ", " << graph;
    }
  }
}

// With gate and up in FP8, results are bit-identical with and without recomputation, offloading and CUDA graphs.
TEST_F(GpuTraining, GateAndUpInFp8GiveTheSameBits) {
  if (inspect_backend(Backend::cuda).devices[0].capability != 90) GTEST_SKIP() << "FP8 needs a Hopper GPU";
  for (const char* format : {"train.linears=fp8_blocks", "train.linears=fp8_tensor"}) {
    const std::vector<std::string> model = {format, "train.swiglu_inputs=fp8", "model.mlp=swiglu", "model.norm=rms",
                                            "model.mlp_width=384"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), model.begin(), model.end());
      return train(more);
    };
    with({});
    const Result plain = with({"train.recompute=none"});
    EXPECT_LT(plain.losses.back(), plain.losses.front());
    EXPECT_FALSE(plain == with({"train.recompute=none", "train.swiglu_inputs=auto"})) << format;
    for (const char* recompute : {"train.recompute=mlp", "train.recompute=block", "train.recompute=full"})
      EXPECT_EQ(plain, with({recompute})) << format << ", " << recompute;
    for (const bool graph : {false, true})
      for (const bool offload : {false, true}) {
        const Result other = with({"train.recompute=none", str("train.cuda_graph=", graph ? "on" : "off"),
                                   str("train.activation_offload=", offload ? "true" : "false")});
        EXPECT_EQ(plain, other) << format << ", graph " << graph << ", offload " << offload;
        EXPECT_EQ(other.replayed, graph) << format;
        EXPECT_EQ(other.offloaded > 0, offload) << format;
      }
  }
}

// With train.ema, the device keeps copies of frozen weights; without it, the device has only their FP8 bytes. States
// begin with the average.
TEST_F(GpuTraining, FrozenWeightsInFp8GiveTheSameBitsAsCopies) {
  if (inspect_backend(Backend::cuda).devices[0].capability != 90) GTEST_SKIP() << "FP8 needs a Hopper GPU";
  for (const char* format : {"train.linears=fp8_blocks", "train.linears=fp8_tensor"}) {
    const std::string frozen =
        "optimizer.groups=[{match: ['blocks.1.*.weight', 'blocks.0.attention.wq.weight'], frozen: true}]";
    train({format, frozen});
    const Result copies = train({format, frozen, "train.ema=0.9"});
    EXPECT_LT(copies.losses.back(), copies.losses.front());
    for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"})
      for (const char* offload : {"optimizer.offload=none", "optimizer.offload=all"}) {
        const Result encoded = train({format, frozen, graph, offload});
        SCOPED_TRACE(str(format, ", ", graph, ", ", offload));
        EXPECT_EQ(encoded.losses, copies.losses);
        EXPECT_EQ(encoded.norms, copies.norms);
        ASSERT_LT(encoded.states.size(), copies.states.size());
        EXPECT_TRUE(std::equal(encoded.states.rbegin(), encoded.states.rend(), copies.states.rbegin()));
      }
  }
}

// Precisions and state types use different arithmetic for the same training.
TEST_F(GpuTraining, PrecisionsAgree) {
  const Result exact = train({"train.precision=fp32"});
  for (std::vector<std::string> how : {std::vector<std::string>{"train.precision=tf32"},
                                       {"train.precision=bf16"},
                                       {"optimizer.master=bf16", "optimizer.moments=bf16", "optimizer.gradients=bf16"},
                                       {"optimizer.moments=bf16"},
                                       {"optimizer.moments=fp8"}}) {
    const Result other = train(how);
    for (std::size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(other.losses[i], exact.losses[i], 5e-3 * exact.losses[i]) << how[0] << ", step " << i + 1;
  }
}

}  // namespace
}  // namespace ring::test
