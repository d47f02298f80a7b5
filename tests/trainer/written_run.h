#pragma once
// A run with known weights, written like that of a training.

#include <cmath>

#include "checkpoint/files.h"
#include "checkpoint/writer.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "model/decoder.h"
#include "tests/checkpoint/fixture.h"

namespace ring::test {

// Fills a tensor with different numbers in all elements, also in norms and biases.
inline void fill(const Tensor& t, std::uint64_t seed) {
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(seed)) + 0.01f;
}

// Writes a run with the tokenizer `bytes`. Returns its checkpoint.
inline fs::path write_run(const Config& config, const fs::path& folder) {
  const ExecContext ctx = make_exec_context(config);
  Decoder model(config.model);
  model.allocate(ctx, 3, {.trainable = false});
  fill(model.parameters().values, 5);
  State state;
  const OwnedShard all = own_everything(model.parameters());
  add_parameters(state, kWeightsPrefix, model.parameters(), all.pieces, all.values);
  write_text(folder / "config.yaml", settings_with_hash(config));
  save_tokenizer(*bytes_tokenizer(), (folder / "tokenizer.rmt").string());
  return write_checkpoint(folder / "checkpoints", 7, state.snapshot(ctx.stream),
                          checkpoint_metadata(config, {}, nullptr));
}

}  // namespace ring::test
