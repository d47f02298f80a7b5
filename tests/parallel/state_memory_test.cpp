// The planned memory of a run's states equals the memory that the run holds.
#include "parallel/state_memory.h"
#include "model/decoder.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "parallel/parallelize.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

// Two moments of 4 bytes each.
std::uint64_t adamw_bytes(const OwnedShard& owned) { return 8 * static_cast<std::uint64_t>(owned.size); }

std::string text_of(const StateMemory& m) {
  return str("weights ", bytes_text(m.weights + m.master + m.weight_buffers), ", gradients ",
             bytes_text(m.gradients + m.gradient_buffers), ", optimizer states ", bytes_text(m.optimizer_states),
             m.exact ? "; on the host " + bytes_text(m.exact) : "");
}

// Predicts a process's memory from its settings alone.
StateMemory foreseen_memory(const Config& config, Decoder& model, int zero, int ranks, int rank) {
  const int slices = static_cast<int>(config.parallel.tp);
  bind_groups(config.optimizer, model.parameters());
  bind_linears(model, linears_of(config.train), slices);
  model.shard({rank % slices, slices});
  return state_memory(model, zero, ranks / slices, rank / slices, {},
                      [&](const OwnedShard& owned) { return state_bytes(config.optimizer, owned); });
}

using Overrides = std::vector<std::string>;

const char* const kFrozenInState = "optimizer.groups=[{match: ['embedding.*', 'blocks.0.*'], frozen: true}]";

class DistStateMemory : public testing::TestWithParam<Overrides> {};
INSTANTIATE_TEST_SUITE_P(Updates, DistStateMemory,
                         testing::Values(Overrides{"optimizer.kind=adamw"}, Overrides{"optimizer.kind=muon"},
                                         Overrides{"train.linears=fp8_tensor"}, Overrides{"optimizer.moments=fp8"},
                                         Overrides{kFrozenInState},
                                         Overrides{kFrozenInState, "train.linears=fp8_tensor"},
                                         Overrides{kFrozenInState, "train.linears=fp8_blocks", "model.width=256",
                                                   "model.kv_heads=4", "model.mlp_width=256"}));

TEST_P(DistStateMemory, IsPredictedForEveryLayout) {
  for (const char* tp : {"1", "2"})
    for (const int zero : {0, 1, 2, 3}) {
      TrainingOptions options;
      options.ranks = 4;
      options.steps = 1;
      options.overrides = {str("parallel.zero=", zero), str("parallel.tp=", tp), "train.micro_batch=2"};
      options.overrides.insert(options.overrides.end(), GetParam().begin(), GetParam().end());
      const Training run = train_on_ranks(options);
      ASSERT_EQ(run.errors, "");
      Config config = tiny_config();
      config.data.path = "any";
      override_config(config, options.overrides);
      for (int rank = 0; rank < options.ranks; ++rank) {
        Decoder model(config.model, vocab_padding(Backend::cpu));
        const StateMemory foreseen = foreseen_memory(config, model, zero, options.ranks, rank);
        const std::string where = str("zero ", zero, " tp ", tp, " rank ", rank);
        EXPECT_EQ(text_of(foreseen), run.memory[static_cast<std::size_t>(rank)]) << where;
        EXPECT_EQ(foreseen.snapshot, run.state_bytes[static_cast<std::size_t>(rank)]) << where;
      }
    }
}

// If optimizer.offload moves states to the host, only chunks of them remain on the device.
TEST_P(DistStateMemory, IncludesTheStagingOfOffloadedStates) {
  for (const int ranks : {1, 2})
    for (const int bytes : {10'000, 1 << 26}) {
      TrainingOptions options;
      options.ranks = ranks;
      options.steps = 1;
      options.overrides = {"parallel.zero=1", "optimizer.offload=states", "optimizer.offload_staging_bytes=0",
                           str("optimizer.offload_chunk_bytes=", bytes)};
      options.overrides.insert(options.overrides.end(), GetParam().begin(), GetParam().end());
      const Training run = train_on_ranks(options);
      ASSERT_EQ(run.errors, "");
      Config config = tiny_config();
      config.data.path = "any";
      override_config(config, options.overrides);
      for (int rank = 0; rank < ranks; ++rank) {
        Decoder model(config.model, vocab_padding(Backend::cpu));
        const StateMemory m = foreseen_memory(config, model, 1, ranks, rank);
        const std::string text = run.memory[static_cast<std::size_t>(rank)];
        EXPECT_EQ(text.substr(text.find("staging")),
                  str("staging of optimizer states ", bytes_text(staging_bytes(config.optimizer, m.owned, {})),
                      "; on the host ", bytes_text(m.optimizer_states + m.exact)));
      }
    }
}

// If weights are on the host, the device has only the buffers that they are copied to.
TEST(DistStateMemoryOfHostWeights, IsPredictedForEveryLayout) {
  for (const int zero : {0, 1, 2, 3})
    for (const int ranks : {1, 2}) {
      TrainingOptions options;
      options.ranks = ranks;
      options.steps = 1;
      options.overrides = {str("parallel.zero=", zero), "optimizer.offload=weights", kFrozenInState};
      const Training run = train_on_ranks(options);
      ASSERT_EQ(run.errors, "");
      Config config = tiny_config();
      config.data.path = "any";
      override_config(config, options.overrides);
      for (int rank = 0; rank < ranks; ++rank) {
        Decoder model(config.model, vocab_padding(Backend::cpu));
        bind_groups(config.optimizer, model.parameters());
        const StateMemory m = state_memory(model, zero, ranks, rank, {.on_host = HostParams::weights}, adamw_bytes);
        const std::string& text = run.memory[static_cast<std::size_t>(rank)];
        EXPECT_EQ(text.substr(0, text.find(',')), str("weights ", bytes_text(m.weight_buffers)));
        const std::uint64_t states = state_bytes(config.optimizer, m.owned);
        EXPECT_EQ(text.substr(text.find("; on the host")), str("; on the host ", bytes_text(states + m.weights)));
      }
    }
}

// Mixed types, as on GPUs: 2 bytes per weight, and 4 each per master weight, gradient and moment.
TEST(StateMemory, CountsEachTypeAndOnlyWeightsForInference) {
  Decoder model(tiny_config().model);
  ParamTypes types{.weights = DType::bf16};
  const StateMemory m = state_memory(model, 0, 1, 0, types, adamw_bytes);
  const auto n = static_cast<std::uint64_t>(model.parameters().size());
  EXPECT_EQ(m.weights, 2 * n);
  EXPECT_EQ(m.master, 4 * n);
  EXPECT_EQ(m.gradients, 4 * n);
  EXPECT_EQ(m.optimizer_states, 8 * n);
  EXPECT_EQ(m.snapshot, 12 * n);  // master weights and moments
  EXPECT_EQ(m.total(), 30 * n);
  types = {.master = DType::bf16, .weights = DType::bf16, .trainable = false};
  EXPECT_EQ(state_memory(model, 0, 1, 0, types, adamw_bytes).total(), 2 * n);
}

}  // namespace
}  // namespace ring::test
