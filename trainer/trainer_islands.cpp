// The part of Trainer that concerns islands that train alone (parallel.local_steps).

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/host.h"
#include "core/checked.h"
#include "core/clock.h"
#include "core/counted.h"
#include "engine/devices.h"
#include "job/worker_status.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

// While it exists, reports progress to the hang detector, because this process waits for other islands, which may be
// slow. An island that hangs is noticed by its own detector.
class SignsOfLife {
 public:
  SignsOfLife()
      : thread_([](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          for (; !stop.stop_requested(); never.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; }))
            ++own_status().phases;
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

// Throws Error if the model collects statistics while it trains, because each island would have different ones.
void Trainer::refuse_states_of_model() {
  for (TrainingState* t : model().training_states()) {
    State used;
    t->add_to(used);
    if (!used.tensors().empty() || !used.values().empty())
      fail("parallel.islands: ", step_.plan().islands, ": this model collects statistics while it trains (",
           t->prefix(), "), which islands cannot share. Set parallel.islands: 1, or use a different attention pattern");
  }
}

std::unique_ptr<OuterOptimizer> Trainer::make_outer() {
  if (config_.parallel.local_steps == 0) return nullptr;
  if (has_islands()) refuse_states_of_model();
  if (has_islands())
    islands_log_interval_ = static_cast<std::int64_t>(
        sum_host(mesh_.host(), mesh_.rank() == 0 ? static_cast<double>(config_.train.log_interval) : 0));
  return std::make_unique<OuterOptimizer>(
      config_.parallel, config_.train.steps, model(), step_.data(),
      OuterOptimizer::Groups{mesh_.background_group({"island"}), mesh_.group(kDataAxes)},
      narrow<int>(config_.run.threads), ctx_);
}

void Trainer::begin_exchange() {
  if (!islands_meet()) return;
  const double began = seconds_now();
  const SignsOfLife signs;
  state_copied_.synchronize();  // allowed host wait: checkpoint
  outer_->send(steps_, ctx_);
  if (outer_->in_flight()) sent_ = {steps_, tokens_, cursor_};
  exchange_seconds_ += seconds_now() - began;
}

// Waits for the other islands before it changes anything, so that a peer lost in the meantime leaves the state whole.
void Trainer::end_exchange() {
  if (!must_finish(steps_) || exchange_.combined == steps_) return;
  RING_CHECK(steps_in_flight_.empty(), "islands exchange weights with a step in flight");
  const double began = seconds_now();
  const SignsOfLife signs;
  if (!outer_->in_flight()) {
    if (config_.parallel.outer_delay == 0 || steps_ == config_.train.steps) wait_for_islands();
    sent_ = {steps_, tokens_, cursor_};
  }
  state_copied_.synchronize();  // allowed host wait: checkpoint
  step_.optimizer().wait_for_copies(ctx_.stream);
  if (outer_->receive(steps_, ctx_)) {
    step_.data().on_master_weights_changed();
    exchange_ = sent_;
    exchange_.combined = steps_;
  }
  exchange_seconds_ += seconds_now() - began;
}

void Trainer::restart_island(const std::optional<IslandExchange>& after) {
  if (after) {
    RING_CHECK(after->step >= 0, "an island starts again from an exchange that is not known");
    steps_ = after->step;
    tokens_ = after->tokens;
    cursor_ = after->cursor;
  }
  outer_->take_theta(ctx_);
}

// Infers the latest exchange from the loaded state. This is possible only if the state was saved right after an
// exchange.
void Trainer::find_exchange() {
  const bool here = outer_ && config_.parallel.outer_delay == 0 && outer_->sends_after(steps_);
  exchange_ = {.step = here ? steps_ : -1, .tokens = tokens_, .cursor = cursor_, .combined = steps_};
}

IslandPlace Trainer::island_place() const {
  if (!outer_) return {};
  const int size = island_host_.size();
  return {mesh_.degree("island"), mesh_.coord("island"), size, mesh_.rank() % size, exchange_};
}

void Trainer::update_own_bad_steps() {
  if (has_islands()) bad_steps_of_islands_[static_cast<std::size_t>(mesh_.coord("island"))] = *guard_.state();
}

void Trainer::average_over_islands(StepReport& r) {
  if (!has_islands() || !(r.step % islands_log_interval_ == 0 || r.step == config_.train.steps)) return;
  const double weight = r.accepted ? r.valid : 0;  // a step that was passed over does not count
  const auto share = [&](double x) { return r.accepted ? x * weight : 0; };
  std::vector<double> sums = {weight, share(r.loss), share(r.norm), share(r.auxiliary_loss.value_or(0))};
  for (const SourceLoss& s : r.sources) sums.insert(sums.end(), {r.accepted ? s.sum : 0, r.accepted ? s.targets : 0});
  wait_for_islands();
  all_reduce_host(mesh_.host_group({"island"}), sums, Reduce::sum);
  if (sums[0] == 0) return;
  r.loss = sums[1] / sums[0];
  r.norm = sums[2] / sums[0];
  if (r.auxiliary_loss) r.auxiliary_loss = sums[3] / sums[0];
  for (std::size_t i = 0; i < r.sources.size(); ++i) r.sources[i] = {sums[4 + 2 * i], sums[5 + 2 * i]};
}

void Trainer::pass_over_step(StepReport& r) {
  RING_CHECK(steps_in_flight_.empty() && !r.accepted, "only a rejected step can be passed over");
  const std::int64_t sequences = next_batch_size();
  r.step = ++steps_;
  cursor_ += sequences;
  tokens_ += sequences * config_.model.context;
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  update_attention_for_next_step();
}

void Trainer::swap_outer_weights() {
  if (!outer_) return;
  RING_CHECK(steps_in_flight_.empty(), "weights are swapped with a step in flight");
  wait_for_islands();
  state_copied_.synchronize();  // allowed host wait: checkpoint
  step_.optimizer().wait_for_copies(ctx_.stream);
  outer_->swap_values(ctx_);
  step_.data().on_master_weights_changed();
}

std::string Trainer::islands_text() const {
  if (!outer_) return "";
  const ParallelConfig& p = config_.parallel;
  const std::string what = str("parallel.local_steps: ", p.local_steps, ": ");
  const std::string fragments = p.outer_fragments > 1 ? str(" in ", p.outer_fragments, " fragments") : "";
  return has_islands()
             ? str(what, counted(p.islands, "island"), " of ", counted(island_host_.size(), "process"),
                   " train alone, and combine their weights every ", counted(p.local_steps, "step"), fragments,
                   ". For this, rank 0 sends ", bytes_text(static_cast<std::size_t>(outer_->message_bytes())),
                   " to each other island (parallel.outer_bits: ", p.outer_bits, ")")
             : str(what, "the outer optimizer updates the weights every ", counted(p.local_steps, "step"), fragments);
}

void Trainer::wait_for_islands() {
  if (!has_islands()) return;
  const SignsOfLife signs;
  mesh_.background_group({"island"}).barrier().synchronize();  // allowed host wait: transport
}

void Trainer::prepare_save() {
  if (!has_islands()) return;
  wait_for_islands();
  // The registered state has pointers to these strings, so each string is assigned in place.
  std::ranges::copy(gather_host(mesh_.host_group({"island"}), *guard_.state()), bad_steps_of_islands_.begin());
}

}  // namespace ring
