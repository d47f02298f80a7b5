#pragma once
// Launches one optimizer step after another. The loop around the steps (when to log, evaluate, save and stop) is in
// trainer/train.h.

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "engine/memory_choice.h"
#include "engine/resolve.h"
#include "engine/step_graph.h"
#include "engine/train_step.h"
#include "evaluate/source_loss.h"
#include "optim/outer_optimizer.h"
#include "trainer/preference.h"
#include "trainer/state_binding.h"
#include "trainer/step_guard.h"
#include "trainer/watch.h"

namespace ring {

struct StepReport {
  std::int64_t step = 0;  // number of steps done, including this one
  double loss = 0;        // mean over the valid tokens of all micro-batches and ranks of this island;
                          // after average_over_islands(): over all islands
  double norm = 0;        // gradient norm before clipping
  double valid = 0;       // number of tokens with a target in this island, or of pairs of answers
  double lr = 0;
  double decay_scale = 1;  // factor on every weight decay
  // Norm of each part in Trainer::parts() if the step is logged; NaN if there was too little memory.
  std::vector<double> part_norms;
  WatchReport watched;                   // empty if the step is not watched (train.diagnostics_interval)
  std::vector<SourceLoss> sources;       // loss of each corpus of a mixture; empty if there is only one corpus
  std::optional<double> auxiliary_loss;  // mean over the same tokens as `loss`; nullopt if the model has none
  std::optional<PairLoss> pairs;         // means over the pairs of answers; nullopt without preference.loss
  bool accepted = true;  // false if loss or norm is not finite or above a limit; then nothing was updated
  std::int64_t sequences = 0, tokens = 0;  // total over all ranks; a sequence is one sample
  std::int64_t context = 0;                // tokens per sequence (train.contexts)
  std::int64_t trained = 0;                // tokens trained before this step
  // Duration of the step on the device (from the end of the previous step if the device was busy until then), and the
  // time spent waiting for data and for other ranks.
  double seconds = 0, data_seconds = 0, exchange_seconds = 0;
};

// The latest exchange of weights between islands (parallel.local_steps).
struct IslandExchange {
  std::int64_t step = 0;                // step after which the weights were sent; -1 if unknown
  std::int64_t tokens = 0, cursor = 0;  // tokens trained until then, and the next sample
  std::int64_t combined = 0;  // step after which they were combined; if `step` is unknown, that of the loaded state
  bool operator==(const IslandExchange&) const = default;
};

// A rank's place among the islands, whose ranks are consecutive. islands: 0 without an outer optimizer.
struct IslandPlace {
  int islands = 0, island = 0;
  int size = 1, position = 0;  // number of ranks of the island, and the rank's index among them
  IslandExchange exchange;
  bool operator==(const IslandPlace&) const = default;
};

// Thrown when one of several ranks ran out of memory in a step. The other ranks wait for it in the middle of the step,
// so all ranks must restart, with the choice `next`. The message says what ran out and what the next choice is.
struct RanOutOfMemory : Error {
  RanOutOfMemory(const std::string& what, MemoryChoice smaller) : Error(what), next(std::move(smaller)) {}
  MemoryChoice next;
};

// Trains a run step by step. Steps are launched, then finished in the same order. On a GPU the host runs ahead: it
// launches the next step before it reads the result of the previous step. A step that is not accepted updates nothing,
// and neither do the steps launched after it; the next step to be launched then reuses its samples.
class Trainer {
 public:
  // config: resolved (see resolve_config). `loader` returns this rank's micro-batches in order. max_memory: upper bound
  // on a step's bytes; 0 means no bound beyond the available memory. While this object lives, the stream allocates
  // memory through this object's StepArena. Throws Error if the stream already uses the StepArena of another trainer.
  Trainer(const Config& config, const ExecContext& ctx, Mesh& mesh, Loader& loader, std::size_t max_memory = 0);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Launches the next step. Does not wait for the device, except in the first steps, which measure and plan. If memory
  // runs out and a smaller choice is left (engine/memory_choice.h), a single process computes the step again with that
  // choice, while several processes throw RanOutOfMemory. Throws OutOfMemory if no smaller choice is left.
  void launch();
  StepReport finish();  // waits for the oldest step in flight and returns its report
  std::size_t in_flight() const { return steps_in_flight_.size(); }
  // Call after a peer was lost and Mesh::abort(). Waits until the device has ended the queued work. Then counts the
  // steps in flight that have updated the weights, and drops the others, so that steps_done() is the step of the state
  // on the device. Returns false if the device is still busy after `limit`. Throws Error if the device has failed.
  bool settle(std::chrono::milliseconds limit);
  // Makes all processes adopt the measured kernel choices of the lowest rank that has any. Collective; there must be no
  // step in flight.
  void agree_on_kernel_choices();
  StepReport step() {
    launch();
    return finish();
  }
  // Returns the maximum number of steps in flight while the next one is prepared: 0 if queueing a step takes as long as
  // computing it. This is the case on a CPU, and for sequences in chunks or slices (train.sequence_chunk,
  // parallel.pp_slices), whose keys the host copies.
  std::size_t max_in_flight() const {
    return ctx_.stream.device().backend == Backend::cpu || step_.plan().in_chunks ? 0 : 1;
  }
  // With islands that train alone (parallel.local_steps), call begin_exchange() before launch(), and end_exchange() and
  // average_over_islands() once the step was accepted or passed over. Otherwise they do nothing. Collective over the
  // islands in the steps in which islands exchange something.
  void begin_exchange();
  void end_exchange();
  // If the step is logged, replaces its losses and its gradient norm by their means over the islands.
  void average_over_islands(StepReport&);
  // Returns true if step `step` must have ended before the next launch(), because islands then exchange weights.
  bool must_finish(std::int64_t step) const { return outer_ && outer_->must_finish(step); }
  // Returns true if several islands combine their weights after step `step`, once it has ended.
  bool islands_combine_after(std::int64_t step) const {
    return has_islands() &&
           outer_->sends_after(step - (step == config_.train.steps ? 0 : config_.parallel.outer_delay));
  }
  // Returns true if islands exchange weights after the latest step. Only then may they decide together to stop or save.
  bool islands_meet() const { return outer_ && outer_->sends_after(steps_); }
  // Counts a rejected step as done, without an update, so that all islands stay at the same step and sample. Sets the
  // report's step.
  void pass_over_step(StepReport&);
  // Swaps the weights of this island and the outer weights; the next call swaps them back. Does nothing without an
  // outer optimizer. There must be no step in flight. Collective.
  void swap_outer_weights();
  // Returns the latest exchange; step 0 if there was none since the run began.
  const IslandExchange& exchange() const { return exchange_; }
  void set_exchange(const IslandExchange& e) { exchange_ = e; }  // call after loading the state of an earlier trainer
  // Makes this island continue from the outer weights, after the given exchange or, if there is none, at the other
  // island's step. Call after loading the outer optimizer's state and another island's optimizer states, before
  // on_state_loaded(). Collective over the island.
  void restart_island(const std::optional<IslandExchange>&);
  IslandPlace island_place() const;
  void update_own_bad_steps();  // call before a snapshot that only this island uses
  bool has_islands() const { return step_.plan().islands > 1; }
  bool leads_island() const { return island_host_.rank() == 0; }
  Communicator& island_host() { return island_host_; }  // the ranks of this island, with tensors in host memory
  std::string islands_text() const;  // describes islands and their messages; empty without an outer optimizer
  // Blocks until all islands have arrived here, however slow they are: without this, the operations over all ranks that
  // follow would run into options.timeout. Does nothing without islands. Collective.
  void wait_for_islands();
  // Exchanges the bad steps of all islands, which every checkpoint holds. Call before a snapshot. Collective.
  void prepare_save();

  // Computes the next step's forward and describes the step: its sample indices and its first tensor that is not
  // finite. Call on every rank.
  std::string diagnose_step();
  // Skips the samples from the next step's first sample up to `end` (exclusive). There must be no step in flight.
  void skip_to(std::int64_t end);
  std::int64_t next_sample() const { return cursor_; }
  std::int64_t next_batch_size() const { return batch_size_at(config_.train, tokens_); }
  std::int64_t next_context() const;
  StepGuard& guard() { return guard_; }

  // Adds weights, moments, the step count and the data cursor. The state may only be used with no step in flight.
  void add_state(State&);
  // Makes the next update wait for `copied`, the event at which a copy of the state is complete. The rest of the step
  // does not wait.
  void keep_state_until(const Event& copied) {
    step_.keep_state_until(copied);
    state_copied_ = copied;
  }
  // Returns true if the state is exactly that after steps_done() steps: no step is in flight, no update has begun that
  // is not counted yet, and islands are not exchanging weights. May be called after an operation has failed in the
  // middle of a step.
  bool is_state_whole() const {
    return steps_in_flight_.empty() && step_.updates_begun() == updates_counted_ && !(outer_ && outer_->in_flight());
  }
  const StepReport& latest() const { return latest_; }    // latest accepted step; its `step` is 0 if there was none
  const StepReport& earlier() const { return earlier_; }  // the accepted step before latest(); `step` is 0 if none
  void set_latest(const StepReport& r) { latest_ = r; }   // call after loading the state of an earlier trainer
  void on_state_loaded();  // call after loading the state; moves the loader to the cursor, and forgets earlier reports
  void load_weights(const std::string& checkpoint) { binding_.load_weights(checkpoint); }

  // Reports every kernel of the following steps to `observer`; null disables this.
  void observe(std::shared_ptr<KernelObserver> observer) { step_.observe(std::move(observer)); }

  bool averages() const { return config_.train.ema > 0; }
  // Call between steps, on all ranks; see TrainStep::swap_average_weights().
  void swap_average_weights() { step_.swap_average_weights(); }

  PreferenceTraining* preference() { return preference_.get(); }  // null without preference.loss

  Model& model() { return step_.model(); }
  const std::vector<ScopeId>& parts() const { return step_.part_norms().parts(); }
  const MemoryChoice& memory() const { return memory_; }
  // An out-of-memory error in a step of this process, after which a smaller choice replaced the old one.
  struct OomFallback {
    std::string why;  // what ran out, and which choice is used from then on
    MemoryChoice next;
  };
  const std::vector<OomFallback>& oom_fallbacks() const { return oom_fallbacks_; }
  std::string latest_oom_text() const { return oom_fallbacks_.empty() ? "" : oom_fallbacks_.back().why; }
  const ParallelPlan& plan() const { return step_.plan(); }
  ContextBatches& cp_batches() { return step_.cp_batches(); }
  const ExecContext& exec() const { return ctx_; }
  StepArena& arena() { return step_.arena(); }
  std::string lasting_memory_text() const;
  // Returns the number of steps that were launched and not rejected; in_flight() of them may still be computing.
  std::int64_t steps_done() const { return steps_; }
  // Returns the seconds spent in steps since the run began, including time before it was resumed.
  double seconds() const { return seconds_; }
  double seconds_left() const;  // estimated from the speed so far
  // Returns train.steps, or the number of steps that the time limit allows at the speed so far; 0 if not known yet.
  std::int64_t planned_steps() const;
  std::int64_t tokens_seen() const { return tokens_; }
  bool replays_graph() const { return graph_.replays(); }
  const HostOffload* offload() const { return step_.offload(); }  // null if activations stay on the device

 private:
  // A step whose result the host has not read yet.
  struct StepInFlight {
    StepReport report;
    double valid = 1;           // number of tokens with a target, or of pairs, over all ranks of this island
    double started = 0;         // host time (seconds_now()) when launch() began
    double begun_after = 0;     // host time (seconds_now()) when the launch() that recorded `begun` began
    double launch_seconds = 0;  // host time to queue the computation
    bool logged = false;        // true if at least one rank logs the step, so that the norms of the parts are measured
    bool replays = false;       // true if all ranks are ready to record or replay the step
    std::shared_ptr<void> result;  // StepState and squared norms of the parts, in host memory; valid after `done`
    std::shared_ptr<void> losses;  // copy of TrainStep::losses().all, in host memory; valid after `done`
    Watch::Result watched;         // null if the step is not watched
    // The step's duration is the time from `begun` to `done`, which is recorded after the step's work. If the previous
    // step was in flight at launch(), `begun` is the previous step's `done`; otherwise launch() began with recording
    // it.
    Event begun, done;
  };

  void refuse_states_of_model();
  void find_exchange();
  std::unique_ptr<OuterOptimizer> make_outer();
  std::unique_ptr<Watch> make_watch();
  void launch_step();
  bool queue_step(bool watched);
  MemoryChoice smaller_choice_after(const OutOfMemory&);
  void recompute_with_smaller_choice(const MemoryChoice&);
  void wait_for_steps_in_flight();
  void discard_recording();
  void update_attention_for_next_step();
  void resize_for_next_step();
  std::vector<Batch> next_batches();  // returns only the parts that this rank computes
  void count_tokens(const std::vector<Batch>&, StepInFlight&);
  void measure_parts(StepInFlight&);
  std::vector<double> part_norms(const StepInFlight&);
  std::size_t result_bytes() const { return sizeof(StepState) + parts().size() * sizeof(float); }
  std::int64_t total_schedule_steps();
  void apply_schedule(StepReport&);
  void upload_state(const StepReport&, double valid_tokens);
  void run_trial_step();
  static double seconds_of(const StepInFlight&);
  // Completes the step's report. If the step was rejected, subtracts it from the counts of steps, samples and tokens.
  // Returns true if it was accepted.
  bool count_result(StepInFlight&);
  void uncount(const StepReport& r) { --steps_, cursor_ -= r.sequences, tokens_ -= r.tokens; }
  void uncount_steps_in_flight();
  void drop_rejected_step(StepReport&);  // drops the steps after a rejected one, and prepares to launch it again

  const Config& config_;
  Mesh& mesh_;
  Loader& loader_;
  MemoryChoice memory_;
  std::vector<OomFallback> oom_fallbacks_;
  const bool packs_;  // true if samples hold several documents or sequences
  TrainStep step_;
  const ExecContext& ctx_ = step_.exec();
  Communicator& island_host_;
  std::int64_t islands_log_interval_ = 0;  // rank 0's train.log_interval
  std::unique_ptr<OuterOptimizer> outer_;  // null without parallel.local_steps
  IslandExchange exchange_, sent_;         // the latest exchange, and the one that has begun
  Event state_copied_;                     // at which the latest copy of the state is complete
  StepGraph graph_;
  std::deque<StepInFlight> steps_in_flight_;
  std::vector<std::shared_ptr<void>> results_, losses_;  // host memory for results and losses of steps, reused in turn
  std::int64_t steps_ = 0, tokens_ = 0, cursor_ = 0;
  double seconds_ = 0;
  double exchange_seconds_ = 0;   // time spent exchanging weights since the latest step
  std::unique_ptr<Watch> watch_;  // null if no step is watched
  const StateBinding binding_;
  std::unique_ptr<PreferenceTraining> preference_;  // null without preference.loss
  bool choices_agreed_ = false;                     // true if all ranks have the same measured choices
  StepGuard guard_;
  std::vector<std::string> bad_steps_of_islands_;  // state of each island's guard, as checkpoints hold it
  StepReport latest_, earlier_;
  std::uint64_t updates_counted_ = 0;  // TrainStep::updates_begun() after the latest step was queued completely
};

// Returns the options with which this process reads its part of the data.
LoaderOptions loader_options(const Config& resolved, Mesh&);

}  // namespace ring
