#pragma once
// One optimizer step after another. The loop around it (when to log, evaluate, save and stop) is in trainer/train.h.

#include <memory>
#include <vector>

#include "checkpoint/state.h"
#include "comm/communicator.h"
#include "data/loader.h"
#include "model/decoder.h"
#include "parallel/reducer.h"
#include "trainer/config.h"
#include "trainer/optimizer.h"

namespace ring {

struct StepReport {
  std::int64_t step = 0;  // steps done, this one included
  double loss = 0;        // mean over the valid tokens of all micro-batches and ranks
  double norm = 0;        // of the gradient, before clipping
  double lr = 0;
  bool finite = true;       // false: loss or norm is NaN or infinite, and nothing was updated
  std::int64_t tokens = 0;  // of all ranks
  double seconds = 0, data_seconds = 0, exchange_seconds = 0;  // the whole step; waiting for data; for other ranks
};

class Trainer {
 public:
  // config: resolved (see resolve_config). The batches of `loader` are this rank's micro-batches in order.
  Trainer(const Config& config, const Context& ctx, Communicator& comm, Loader& loader);

  StepReport step();
  // After a step that was not finite: its sample indices and the first tensor that is not finite.
  std::string diagnose();

  // Weights, moments, the step count and the data cursor.
  void add_state(State&);
  void restored();  // after loading: moves the loader to the cursor

  Decoder& model() { return model_; }
  const Context& context() const { return ctx_; }
  std::int64_t steps_done() const { return steps_; }
  double seconds() const { return seconds_; }  // spent in steps since the run began, resumptions included
  double seconds_left() const;                 // as far as the pace so far tells
  std::int64_t planned_steps() const;  // train.steps, or how many the time limit allows at this pace; 0: not known yet
  std::int64_t tokens_seen() const { return tokens_; }

 private:
  double valid_tokens(const std::vector<Batch>&);
  double learning_rate();
  Run micro_run(std::size_t index, Tape*) const;
  Sequences sequences() const;
  Tensor micro_step(std::size_t index, double valid);

  const Config& config_;
  Context ctx_;
  Communicator& comm_;
  Loader& loader_;
  std::int64_t micro_batch_;  // sequences
  Decoder model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<Batch> batches_;  // of the latest step
  std::int64_t steps_ = 0, tokens_ = 0, cursor_ = 0;
  double seconds_ = 0;
};

// The settings with everything derived filled in: vocabulary, widths, steps, threads. Error: the vocabulary is too
// small, or the batch does not divide among the ranks.
Config resolve_config(Config, std::int64_t corpus_vocab, int ranks);

// Sequences in a forward pass of each rank. Error: the batch does not divide.
std::int64_t micro_batch(const Config&, int ranks);

}  // namespace ring
