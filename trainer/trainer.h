#pragma once
// One optimizer step after another. The loop around it (when to log, evaluate, save and stop) is in trainer/train.h.

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
#include "trainer/state_binding.h"
#include "trainer/step_guard.h"
#include "trainer/watch.h"

namespace ring {

struct StepReport {
  std::int64_t step = 0;  // steps done, this one included
  double loss = 0;        // mean over the valid tokens of all micro-batches and ranks
  double norm = 0;        // of the gradient, before clipping
  double lr = 0;
  double decay_scale = 1;           // factor on every weight decay
  std::vector<double> part_norms;   // of Trainer::parts() where the step is logged, else empty; NaN: no memory for it
  WatchReport watched;              // where train.watch_interval says so, else empty
  std::vector<SourceLoss> sources;  // of each corpus of a mixture; empty: there is one
  std::optional<double> auxiliary_loss;  // likewise; none: the model has none
  bool accepted = true;                  // false: loss or norm is not finite or above a limit, and nothing was updated
  std::int64_t sequences = 0, tokens = 0;                      // of all ranks; sequences: samples
  std::int64_t context = 0;                                    // tokens that see each other
  std::int64_t trained = 0;                                    // tokens before it
  double seconds = 0, data_seconds = 0, exchange_seconds = 0;  // the whole step; waiting for data; for other ranks
};

// A step of one rank among several ran out of memory: the others wait for it in the middle of the step, so that all
// have to start again, with `next`. The message says what ran out and what is next.
struct RanOutOfMemory : Error {
  RanOutOfMemory(const std::string& what, MemoryChoice smaller) : Error(what), next(std::move(smaller)) {}
  MemoryChoice next;
};

// Steps are launched, then finished in the same order. On a device the host runs ahead: it launches the next step
// before it reads what became of the last one. A step that was not accepted updates nothing, nor do those launched
// after it; the next one to be launched then has its samples again.
class Trainer {
 public:
  // config: resolved (see resolve_config). The batches of `loader` are this rank's micro-batches in order.
  // Until it ends, the stream's memory comes by way of a StepArena. Error: it does already, of another trainer.
  // most_memory: to fit into, where that is less than what there is; 0: it is not.
  Trainer(const Config& config, const ExecContext& ctx, Mesh& mesh, Loader& loader, std::size_t most_memory = 0);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Does not wait for the device, but for the first steps, which measure and plan. Where memory runs out and a smaller
  // choice is left (engine/memory_choice.h), a process that is alone computes the step again with that; among several
  // it is an Error: RanOutOfMemory. OutOfMemory: nothing smaller is left.
  void launch();
  StepReport finish();  // of the oldest step in flight; waits for it
  std::size_t in_flight() const { return flight_.size(); }
  // Collective, with no step in flight: all processes take over what was measured, of the lowest rank that did.
  void agree();
  StepReport step() {
    launch();
    return finish();
  }
  // How many steps may be in flight while the next one is prepared: none where computing blocks the host anyway.
  std::size_t most_in_flight() const { return ctx_.stream.device().backend == Backend::cpu ? 0 : 1; }
  // After a step that was not finite, on every rank: its sample indices and the first tensor that is not finite.
  std::string diagnose();
  // The samples from the next step's first one up to `end` are left out. With no step in flight.
  void skip_to(std::int64_t end);
  std::int64_t next_sample() const { return cursor_; }
  std::int64_t next_batch_size() const { return batch_size_at(config_.train, tokens_); }
  std::int64_t next_context() const;
  StepGuard& guard() { return guard_; }

  // Weights, moments, the step count and the data cursor. To be used with no step in flight.
  void add_state(State&);
  // The state is being copied: from the next step on, what changes it comes after this event. The rest does not wait.
  void keep_state_until(const Event& copied) { step_.keep_state_until(copied); }
  void restored();  // after loading: moves the loader to the cursor
  void load_weights(const std::string& checkpoint) { binding_.load_weights(checkpoint); }

  // Shows every kernel of the steps that are launched from now on; null: nobody watches.
  void observe(std::shared_ptr<KernelObserver> observer) { step_.observe(std::move(observer)); }

  bool averages() const { return config_.train.ema > 0; }
  // Between steps, on all ranks: see TrainStep::exchange_average().
  void exchange_average() { step_.exchange_average(); }

  Model& model() { return step_.model(); }
  const std::vector<ScopeId>& parts() const { return step_.part_norms().parts(); }
  const MemoryChoice& memory() const { return memory_; }
  // Each time that memory ran out in a step of this process and a smaller choice took its place.
  struct Shortage {
    std::string why;  // with what is done from then on
    MemoryChoice next;
  };
  const std::vector<Shortage>& shortages() const { return shortages_; }
  std::string memory_ran_out() const { return shortages_.empty() ? "" : shortages_.back().why; }
  const ParallelPlan& plan() const { return step_.plan(); }
  ContextBatches& cp_batches() { return step_.context(); }
  const ExecContext& exec() const { return ctx_; }
  StepArena& arena() { return step_.arena(); }
  std::string lasting_memory() const { return step_.lasting_memory(); }
  std::int64_t steps_done() const { return steps_; }  // launched
  double seconds() const { return seconds_; }         // spent in steps since the run began, resumptions included
  double seconds_left() const;                        // as far as the pace so far tells
  std::int64_t planned_steps() const;  // train.steps, or how many the time limit allows at this pace; 0: not known yet
  std::int64_t tokens_seen() const { return tokens_; }
  bool replays_graph() const { return graph_.replays(); }
  const HostOffload* offload() const { return step_.offload(); }  // null: activations stay on the device

 private:
  // A step whose result the host has not read yet.
  struct Flight {
    StepReport report;
    double valid = 1;              // tokens with a target, of all ranks
    double started = 0;            // on the trainer's clock
    double launch_seconds = 0;     // of the host, queueing the computation
    bool logged = false;           // by some rank: the norms of the parts are measured
    bool replays = false;          // all ranks would record or replay it
    std::shared_ptr<void> result;  // StepState and squared norms of the parts in host memory, there after `done`
    std::shared_ptr<void> losses;  // the same of TrainStep::losses()
    Watch::Result watched;         // null: nobody watches this step
    Event done;
  };

  std::unique_ptr<Watch> make_watch();
  void launch_step();
  bool queue_step(bool watched);
  MemoryChoice smaller_after(const OutOfMemory&);
  void compute_again(const MemoryChoice&);
  void end_flight();
  void forget_steps();
  void attend_as_next();
  void size_step();
  std::vector<Batch> next_batches();  // as far as this rank computes them
  void count_tokens(const std::vector<Batch>&, Flight&);
  void measure_parts(Flight&);
  std::vector<double> part_norms(const Flight&);
  std::size_t result_bytes() const { return sizeof(StepState) + parts().size() * sizeof(float); }
  std::int64_t schedule_steps();
  void schedule(StepReport&);
  void upload_state(const StepReport&, double valid);
  void rehearse();
  void undo(Flight&);  // a step that was not accepted, and all after it

  const Config& config_;
  Mesh& mesh_;
  Loader& loader_;
  MemoryChoice memory_;
  std::vector<Shortage> shortages_;
  const bool packs_;  // samples hold several documents or sequences
  TrainStep step_;
  const ExecContext& ctx_ = step_.exec();
  StepGraph graph_;
  std::deque<Flight> flight_;
  std::vector<std::shared_ptr<void>> results_, losses_;  // host memory for what steps leave and for losses, in turn
  std::int64_t steps_ = 0, tokens_ = 0, cursor_ = 0;
  double seconds_ = 0, last_finish_ = 0;
  std::unique_ptr<Watch> watch_;  // null: no step is watched
  const StateBinding binding_;
  bool agreed_ = false;  // on measured choices
  StepGuard guard_;
};

// What the loader of this process reads.
LoaderOptions loader_options(const Config& resolved, Mesh&);

}  // namespace ring
