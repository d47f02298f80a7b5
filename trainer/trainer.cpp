#include "trainer/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "comm/host.h"
#include "core/clock.h"
#include "core/counted.h"
#include "core/host_tensor.h"
#include "core/log.h"
#include "engine/devices.h"
#include "engine/memory_check.h"
#include "evaluate/evaluate.h"
#include "evaluate/session.h"
#include "job/run_phase.h"
#include "job/worker_status.h"
#include "kernels/tuning.h"
#include "model/flops.h"
#include "optim/schedule.h"
#include "trainer/diagnose.h"

namespace ring {
namespace {

[[noreturn]] void fail_with_advice(const OutOfHostMemory& e) {
  if (!e.advice.empty()) throw OutOfHostMemory(e.facts, e.advice);
  throw OutOfHostMemory(
      e.facts,
      "Lower train.activation_offload_bytes, set train.activation_offload: false or optimizer.offload to states or "
      "none, or give the host more memory (or, with GPUs, a higher limit of locked memory: ulimit -l)");
}

// Returns the squared norms, which are stored after the StepState in a result.
float* squares_of(const std::shared_ptr<void>& result) {
  static_assert(sizeof(StepState) % alignof(float) == 0);
  return reinterpret_cast<float*>(static_cast<std::byte*>(result.get()) + sizeof(StepState));
}

void reserve_host(TrainStep& step, std::size_t bytes) try {
  step.reserve_host(bytes);
} catch (const OutOfHostMemory& e) {
  fail_with_advice(e);
}

// With packed documents, each step queues attention anew, between CUDA graphs of the remaining work. Returns why that
// is impossible (something else depends on the document boundaries, or runs at the same time); empty if it is possible.
std::string why_not_in_parts(const Config& c, TrainStep& step) {
  if (step.plan().world() > 1) return "document boundaries differ in each step, and messages overlap with attention";
  if (step.model().chooses_keys()) return "the blocks that attention keeps depend on document boundaries";
  if (c.optimizer.offload != StateOffload::none)
    return "states are copied while attention is queued (optimizer.offload)";
  if (step.offload()) return "activations are copied while attention is queued (train.activation_offload)";
  return "";
}

// Returns why steps cannot be replayed as a CUDA graph; empty if a recorded graph stays valid on all ranks.
std::string why_not_replayed(const Config& c, TrainStep& step, bool packs) {
  const ParallelPlan& plan = step.plan();
  if (plan.in_chunks) return "sequences are computed in chunks (train.sequence_chunk)";
  if (c.optimizer.offload == StateOffload::weights)
    return "copies of weights continue in the next step (optimizer.offload: weights)";
  if (packs) return why_not_in_parts(c, step);
  if (plan.world() > plan.islands * plan.dp)
    return "the processes share the model or its sequences (parallel.pp, .tp, .cp)";
  if (plan.dp > 1 && plan.config.zero > 0)
    return "weight transfers continue from one step into the next (parallel.zero)";
  return "";
}

Switch graph_of(const Config& c, TrainStep& step, bool leads, bool packs) {
  const std::string why_not = why_not_replayed(c, step, packs);
  if (c.train.cuda_graph == Switch::on && !why_not.empty() && leads)
    log::warn("train.cuda_graph: on has no effect: ", why_not, ". Set it to auto or off");
  return why_not.empty() ? c.train.cuda_graph : Switch::off;
}

}  // namespace

Trainer::Trainer(const Config& config, const ExecContext& ctx, Mesh& mesh, Loader& loader, std::size_t max_memory)
    : config_(config),
      mesh_(mesh),
      loader_(loader),
      memory_(choose_memory(config, mesh, activation_room(config, mesh), max_memory)),
      packs_(loader.options().packing.documents || config.train.context > 0),
      step_(config, ctx, mesh, memory_.fit.plan, memory_.fit.host_room, packs_),
      island_host_(mesh.host_group(kIslandAxes)),
      outer_(make_outer()),
      graph_(graph_of(config, step_, mesh.rank() == 0, packs_), ctx.stream, step_.shared_arena(), packs_),
      binding_(config, step_, steps_, outer_.get(), mesh),
      guard_(config.train),
      bad_steps_of_islands_(static_cast<std::size_t>(step_.plan().islands), *guard_.state()) {
  for (TrainingState* state : model().training_states()) state->attach(step_.make_step_access());
  if (chooses_staging(config)) step_.set_staging(memory_.fit.staging);
  reserve_host(step_, memory_.fit.host);
  choices_agreed_ = mesh_.world() == 1 || !ctx_.tuning;
  for (std::size_t i = 0; i < max_in_flight() + 1; ++i) {
    results_.push_back(ctx_.stream.impl().host_buffer(result_bytes()));
    losses_.push_back(ctx_.stream.impl().host_buffer(step_.losses().all.bytes()));
  }
  if (config.train.diagnostics_interval) watch_ = make_watch();
  if (config.preference.on())
    preference_ = std::make_unique<PreferenceTraining>(config.preference, step_, mesh, island_host_, loader);
  update_attention_for_next_step();
}

std::string Trainer::lasting_memory_text() const {
  const std::string text = step_.lasting_memory_text();
  return outer_ ? str(text, "; outer optimizer: ", bytes_text(outer_->host_bytes()), " on the host") : text;
}

std::unique_ptr<Watch> Trainer::make_watch() {
  const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer_states});
  return std::make_unique<Watch>(step_, mesh_, max_in_flight() + 1);
}

// Sums over the ranks of this island: tokens with a target or pairs of answers, ranks that log the step, and ranks that
// would replay it.
void Trainer::count_tokens(const std::vector<Batch>& batches, StepInFlight& f) {
  std::int64_t valid = 0;
  // Tensor-parallel ranks and pipeline stages have the same batches, which are counted once.
  if (mesh_.coord("tp") == 0 && mesh_.coord("pp") == 0)
    for (const Batch& b : batches)
      valid += !preference_             ? b.valid_targets
               : mesh_.coord("cp") == 0 ? static_cast<std::int64_t>(b.documents.size() / 2)
                                        : 0;
  // A recorded graph cannot wait for copies, so a step that must wait is not replayed.
  const bool travels = packs_ && step_.offload();  // true if activations are copied while attention is queued anew
  const bool replays = graph_.ready() && !ctx_.observer && !step_.waits_for_copies() && !travels;
  std::array<double, 3> sums{static_cast<double>(valid), logs_step(config_.train, steps_ + 1) ? 1.0 : 0.0,
                             replays ? 1.0 : 0.0};
  all_reduce_host(island_host_, sums, Reduce::sum);
  f.valid = std::max(1.0, sums[0]);
  f.logged = sums[1] > 0;
  f.replays = sums[2] == island_host_.size();
}

// The update is already queued and must not be repeated, so if memory runs out here, only the norms are lost.
void Trainer::measure_parts(StepInFlight& f) {
  float* const squares = squares_of(f.result);
  std::fill_n(squares, parts().size(), std::numeric_limits<float>::quiet_NaN());
  try {
    const ScopeGuard scope(*ctx_.scopes, {scopes::optimizer});
    const Tensor& sums = step_.part_norms().measure(ctx_);
    ctx_.stream.impl().copy(squares, sums.raw(), sums.bytes());
  } catch (const OutOfMemory&) {
  }
}

std::vector<double> Trainer::part_norms(const StepInFlight& f) {
  const float* const squares = squares_of(f.result);
  std::vector<double> norms(squares, squares + parts().size());
  all_reduce_host(island_host_, norms, Reduce::sum);
  for (double& n : norms) n = std::fabs(std::sqrt(n));
  return norms;
}

std::int64_t Trainer::planned_steps() const {
  if (config_.train.steps || !steps_) return config_.train.steps;
  // Number of times that the time spent so far fits into the time limit.
  const double runs = config_.train.minutes * 60 / seconds_;
  double at_this_pace = runs * static_cast<double>(steps_);
  if (!config_.train.batch_sizes.empty()) {
    const double tokens = std::min(runs * static_cast<double>(tokens_), static_cast<double>(kMaxTokens));
    at_this_pace = static_cast<double>(
        steps_ + steps_of_tokens(config_.train, config_.model.context, static_cast<std::int64_t>(tokens), tokens_));
  }
  return std::max(steps_ + 1, static_cast<std::int64_t>(std::min(at_this_pace, static_cast<double>(kMaxSteps))));
}

// Estimates from tokens per second, because steps with larger batches or contexts take longer.
double Trainer::seconds_left() const {
  if (!steps_) return std::nan("");
  const double limit = config_.train.minutes > 0 ? config_.train.minutes * 60 - seconds_ : INFINITY;
  if (!config_.train.steps) return limit;
  const std::int64_t left =
      tokens_of_steps(config_.train, config_.model.context, config_.train.steps - steps_, tokens_);
  return std::min(limit, seconds_ / static_cast<double>(tokens_) * static_cast<double>(left));
}

// If only the time is limited, the schedule follows the measured speed, which differs between ranks: rank 0's is used.
std::int64_t Trainer::total_schedule_steps() {
  double total = static_cast<double>(planned_steps());
  if (!config_.train.steps) total = sum_host(mesh_.host(), mesh_.rank() == 0 ? total : 0);
  if (total == 0) total = static_cast<double>(config_.schedule.warmup_steps + 1);
  return static_cast<std::int64_t>(total);
}

void Trainer::apply_schedule(StepReport& r) {
  const std::int64_t total = total_schedule_steps();
  r.lr = config_.optimizer.lr * schedule_factor(config_.schedule, steps_, total);
  r.decay_scale = weight_decay_factor(config_.schedule, steps_, total);
}

void Trainer::upload_state(const StepReport& r, double valid_tokens) {
  StepState s;
  s.step = static_cast<std::uint32_t>(steps_);
  s.lr = static_cast<float>(r.lr);
  s.decay_scale = static_cast<float>(r.decay_scale);
  s.loss_scale = static_cast<float>(1.0 / valid_tokens);
  const StepGuard::Limits limits = guard_.limits(steps_ - static_cast<std::int64_t>(max_in_flight()));
  s.loss_limit = static_cast<float>(limits.loss);
  s.norm_limit = static_cast<float>(limits.norm);
  ctx_.stream.impl().upload(step_.state().raw(), &s, kStepInputBytes);
}

// Makes all ranks use the same kernel choices: if each process used the choices that it measured, results would not be
// bit-identical. Computes the first step once in advance, with a loss of NaN, so that it measures kernels but updates
// nothing. If that would take too long, does not compute it: then ranks have the same choices only after the first
// step.
void Trainer::run_trial_step() {
  agree_on_kernel_choices();       // choices read from files
  constexpr double kLongest = 10;  // maximum estimated seconds of the trial step
  const double flops =
      flops_per_token(config_.model) * static_cast<double>(config_.train.batch_size * config_.model.context);
  if (flops / mesh_.world() > kLongest * kRoughGpuFlops) return;
  upload_state({}, std::nan(""));
  queue_step(ctx_.observer != nullptr);
  agree_on_kernel_choices();
  choices_agreed_ = true;
  fill_zero(step_.state(), ctx_.stream);  // clears the mark of a rejected step, so that steps update again
}

// Makes all ranks adopt the choices of the lowest rank that has any.
void Trainer::agree_on_kernel_choices() {
  if (mesh_.world() == 1 || !ctx_.tuning) return;
  ctx_.stream.synchronize();  // allowed host wait: start
  const std::vector<std::string> choices = gather_host(mesh_.host(), ctx_.tuning->text());
  for (auto it = choices.rbegin(); it != choices.rend(); ++it) ctx_.tuning->merge_record(*it);
}

void Trainer::launch() {
  std::optional<MemoryChoice> next;
  while (true) try {
      if (next) recompute_with_smaller_choice(*std::exchange(next, std::nullopt));
      return launch_step();
    } catch (const OutOfHostMemory& e) {
      fail_with_advice(e);
    } catch (const OutOfMemory& e) {
      next = smaller_choice_after(e);
    }
}

// Returns the next choice that needs less memory, after a step ran out of memory. The step has not changed the state:
// memory runs out before the optimizer changes anything.
MemoryChoice Trainer::smaller_choice_after(const OutOfMemory& e) {
  const std::optional<MemoryChoice> next = smaller_choice(config_, mesh_.world(), memory_);
  if (!next)
    throw OutOfMemory(
        e.facts, "No smaller setting is left to try automatically: " + memory_advice(config_, memory_.micro_batch));
  const std::string where = arena().last_failed_scope(),
                    rank = mesh_.world() > 1 ? str("rank ", mesh_.rank(), " ") : "";
  std::string why = str(rank, "ran out of memory in ", where.empty() ? "" : where + " in ", "step ", steps_ + 1, " (",
                        e.facts, "); from now on ", bytes_text(next->fit.peak), " instead of ",
                        bytes_text(memory_.fit.peak), ": ", next->text());
  if (mesh_.world() > 1) throw RanOutOfMemory(why, *next);
  log::warn(why);
  oom_fallbacks_.push_back({std::move(why), *next});
  return *next;
}

// Waits for the steps in flight. Call before changing anything that they use.
void Trainer::wait_for_steps_in_flight() {
  if (!steps_in_flight_.empty())
    steps_in_flight_.back().done.synchronize();  // allowed host wait: start of a smaller or larger step
}

// Discards the recording and the memory plan, because the next steps differ from the previous ones.
void Trainer::discard_recording() {
  wait_for_steps_in_flight();
  graph_.forget();
  step_.arena().forget_plan();
}

// Makes the model use the attention settings of the next step, also in validations before that step.
void Trainer::update_attention_for_next_step() {
  const bool others = step_.model().set_attention_tokens(tokens_);
  if (step_.model().set_attention_step(steps_) || others) discard_recording();
}

std::int64_t Trainer::next_context() const {
  const std::int64_t cut = context_at(config_.train, tokens_);
  return cut ? cut : config_.model.context;
}

// Sets the loader and the step to the next step's size.
void Trainer::resize_for_next_step() {
  loader_.set_sequence(context_at(config_.train, tokens_));
  const std::size_t before = step_.micro_batches();
  step_.set_batch_size(next_batch_size());
  if (step_.micro_batches() != before) discard_recording();
}

// Computes the current step again, from its inputs, with a smaller choice.
void Trainer::recompute_with_smaller_choice(const MemoryChoice& next) {
  memory_ = next;
  wait_for_steps_in_flight();
  step_.abandon_step();
  discard_recording();
  if (next.micro_batch != step_.plan().micro_batch) {
    step_.set_micro_batch(next.micro_batch);
    loader_.set_rows(next.micro_batch);
  }
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  step_.set_activations(next.fit.plan);
  if (chooses_staging(config_)) step_.set_staging(next.fit.staging);
}

bool Trainer::queue_step(bool watched) {
  return graph_.run_or_replay([this] { step_.compute(); }, [this] { step_.optimizer().join_copies(); }, watched);
}

void Trainer::launch_step() {
  if (steps_ >= kMaxSteps) fail("training stopped: a run has at most ", kMaxSteps, " steps");
  RING_CHECK(steps_in_flight_.size() <= max_in_flight(), "a step was launched with ", steps_in_flight_.size(),
             " in flight");
  StepInFlight f;
  f.started = f.begun_after = seconds_now();
  if (steps_in_flight_.empty()) {
    f.begun = ctx_.stream.record_time();
  } else {
    f.begun = steps_in_flight_.back().done;
    f.begun_after = steps_in_flight_.back().started;
  }
  enter(RunPhase::data, steps_ + 1);
  const std::vector<Batch> batches = next_batches();
  f.report.data_seconds = seconds_now() - f.started;
  count_tokens(batches, f);
  apply_schedule(f.report);
  step_.load(batches);
  if (!choices_agreed_) run_trial_step();
  upload_state(f.report, f.valid);
  if (preference_) preference_->weigh(batches);
  for (TrainingState* state : model().training_states())
    if (state->before_step(steps_ + 1)) graph_.forget();
  if (watch_ && (steps_ + 1) % config_.train.diagnostics_interval == 0) f.watched = watch_->begin_step();
  const double queued = seconds_now();
  const bool replayed = queue_step(!f.replays);
  f.launch_seconds = seconds_now() - queued;
  f.result = results_[static_cast<std::size_t>(steps_) % results_.size()];
  ctx_.stream.impl().copy(f.result.get(), step_.state().raw(), sizeof(StepState));
  if (f.logged) measure_parts(f);
  if (f.watched) watch_->end_step(f.watched);
  f.losses = losses_[static_cast<std::size_t>(steps_) % losses_.size()];
  if (const Tensor& losses = step_.losses().all; losses.numel() > 1)
    ctx_.stream.impl().copy(f.losses.get(), losses.raw(), losses.bytes());
  f.done = ctx_.stream.record_time();
  f.report.sequences = next_batch_size();
  f.report.tokens = f.report.sequences * config_.model.context;
  f.report.context = next_context();
  f.report.trained = tokens_;
  f.report.exchange_seconds = replayed ? 0 : step_.data().wait_seconds();
  f.report.step = ++steps_;
  cursor_ += f.report.sequences;
  tokens_ += f.report.tokens;
  steps_in_flight_.push_back(std::move(f));
  updates_counted_ = step_.updates_begun();
  // Agrees last: if a peer is lost during this exchange, the step is queued completely and counts.
  if (!std::exchange(choices_agreed_, true)) agree_on_kernel_choices();
  update_attention_for_next_step();
}

// Returns the step's duration, measured by events on the device: the host cannot time a step that queues many kernels,
// because queueing blocks until the device has run most of them. Events also count the time while this process is
// stopped (SIGSTOP), which is no step time, so the result is at most the time that passed on the host's clock.
double Trainer::seconds_of(const StepInFlight& f) {
  return std::min(f.done.seconds_after(f.begun), seconds_now() - f.begun_after);
}

StepReport Trainer::finish() {
  RING_CHECK(!steps_in_flight_.empty(), "no step is in flight");
  enter(RunPhase::finish);
  steps_in_flight_.front().done.synchronize();  // allowed host wait: log, for which a GPU keeps computing the next step
  mesh_.check();
  StepInFlight f = std::move(steps_in_flight_.front());
  steps_in_flight_.pop_front();
  if (!count_result(f)) drop_rejected_step(f.report);
  // These exchanges come last: if a peer is lost during one of them, the state is consistent.
  if (f.logged) f.report.part_norms = part_norms(f);
  if (f.watched) f.report.watched = watch_->report(f.watched);
  return f.report;
}

bool Trainer::count_result(StepInFlight& f) {
  const StepState& state = *static_cast<const StepState*>(f.result.get());
  StepReport& r = f.report;
  r.valid = f.valid;
  r.loss = static_cast<double>(state.loss) / f.valid;
  r.norm = std::fabs(std::sqrt(state.squared_norm));  // fabs makes NaN print without a sign
  const LossValues losses = step_.losses().values(static_cast<const float*>(f.losses.get()));
  for (std::size_t c = 0; c < losses.by_corpus.size(); ++c)
    r.sources.push_back({losses.by_corpus[c], losses.target_counts[c]});
  if (losses.auxiliary) r.auxiliary_loss = *losses.auxiliary / f.valid;
  if (const auto p = losses.pairs; !p.empty())
    r.pairs = PairLoss{r.loss, static_cast<double>(p[0]) / f.valid, static_cast<double>(p[1]) / f.valid,
                       static_cast<double>(p[2]) / f.valid};
  r.accepted = state.accepted != 0;
  const double exchange_seconds = std::exchange(exchange_seconds_, 0);
  r.exchange_seconds += exchange_seconds;
  r.seconds = seconds_of(f) + exchange_seconds;
  graph_.on_step_timed(f.launch_seconds, r.seconds);
  if (!r.accepted) {
    uncount(r);
    return false;
  }
  seconds_ += r.seconds;
  guard_.accept(r.step, r.loss, r.norm);
  earlier_ = std::exchange(latest_, r);
  return true;
}

void Trainer::uncount_steps_in_flight() {
  for (const StepInFlight& f : steps_in_flight_) uncount(f.report);
  steps_in_flight_.clear();
}

bool Trainer::settle(std::chrono::milliseconds limit) {
  const double end = seconds_now() + std::chrono::duration<double>(limit).count();
  for (const Event last = ctx_.stream.record(); !last.done() || !mesh_.idle();) {
    if (seconds_now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  while (!steps_in_flight_.empty()) {
    StepInFlight f = std::move(steps_in_flight_.front());
    steps_in_flight_.pop_front();
    if (!count_result(f)) uncount_steps_in_flight();
  }
  return true;
}

void Trainer::drop_rejected_step(StepReport& r) {
  uncount_steps_in_flight();
  update_attention_for_next_step();
  r.step = steps_;
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  fill_zero(step_.state(), ctx_.stream);  // clears the mark of a rejected step, so that steps update again
}

void Trainer::skip_to(std::int64_t end) {
  RING_CHECK(steps_in_flight_.empty() && end >= cursor_, "samples are skipped with a step in flight, or backwards");
  cursor_ = end;
  loader_.seek(static_cast<std::uint64_t>(cursor_));
}

// Returns the batches of the next step, split into micro-batches of the current size.
std::vector<Batch> Trainer::next_batches() {
  resize_for_next_step();
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < step_.micro_batches(); ++i) batches.push_back(step_.cp_batches().part(loader_.next()));
  return batches;
}

// All ranks of the island check the same stage at the same time, since a forward pass may need all ranks.
std::string Trainer::diagnose_step() {
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  const std::vector<Batch> batches = next_batches();
  loader_.seek(static_cast<std::uint64_t>(cursor_));
  std::string found;
  const auto report_first = [&](const auto& in) {
    if (!found.empty()) return;
    const std::vector<std::string> all = gather_host(island_host_, in());
    const int first = mesh_.rank() - island_host_.rank();  // an island's ranks are consecutive
    for (std::size_t i = 0; i < all.size() && found.empty(); ++i)
      if (!all[i].empty()) found = mesh_.world() == 1 ? all[i] : str(all[i], ", on rank ", first + static_cast<int>(i));
  };
  step_.optimizer().wait_for_copies(ctx_.stream);
  report_first([&] { return non_finite_weight(step_.data().shard(), ctx_); });
  ContextBatches& parts = step_.cp_batches();
  for (std::size_t m = 0; m < batches.size(); ++m)
    for (int chunk = 0; chunk < parts.chunks(); ++chunk)
      report_first([&] {
        const Batch b = parts.chunk_of(batches[m], chunk);
        const Sequences seqs = parts.sequences(b, positions_of(b, ctx_), ctx_, chunk);
        const ChunkedContext::Chunk computing(parts.chunked(m), seqs.shards, ChunkedContext::Keep::for_forward);
        return non_finite_activation(step_.model(), step_.micro_run(m, seqs, nullptr, chunk),
                                     from_host(b.inputs, ctx_.stream), seqs);
      });
  report_first([&] { return non_finite_gradient(step_.data().shard(), ctx_); });
  if (found.empty()) found = "none: the loss itself overflowed";
  return str("step ", steps_ + 1, ", samples ", cursor_, " to ", cursor_ + next_batch_size() - 1,
             "; first tensor that is not finite: ", found);
}

void Trainer::add_state(State& state) {
  binding_.add_to(state);
  if (preference_) preference_->add_state(state);
  state.add("train.step", &steps_);
  state.add("train.seconds", &seconds_, StateScope::rank0);  // each rank measures its own time
  state.add(kTrainedTokensName, &tokens_);
  state.add("data.cursor", &cursor_);
  if (!has_islands()) return state.add(IslandBinding::bad_steps_name(0), guard_.state());
  for (std::size_t i = 0; i < bad_steps_of_islands_.size(); ++i)
    state.add(IslandBinding::bad_steps_name(static_cast<int>(i)), &bad_steps_of_islands_[i]);
}

void Trainer::on_state_loaded() {
  if (has_islands()) *guard_.state() = bad_steps_of_islands_.at(static_cast<std::size_t>(mesh_.coord("island")));
  if (outer_ && !has_islands()) outer_->abandon();
  latest_ = earlier_ = {};
  if (preference_) preference_->on_state_loaded();
  step_.data().on_master_weights_changed();
  if (GradientCompressor* compressor = step_.data().compressor()) compressor->on_residuals_changed(ctx_);
  update_attention_for_next_step();
  for (TrainingState* state : model().training_states())
    if (state->on_state_loaded()) graph_.forget();
  guard_.on_state_loaded();
  find_exchange();
  loader_.seek(static_cast<std::uint64_t>(cursor_));
}

LoaderOptions loader_options(const Config& c, Mesh& mesh) {
  const BatchSize sizes = batch_size(c);
  return {.context = c.model.context,
          .rows = plan_degrees(c.parallel, c.model, sizes, mesh.world()).micro_batch,
          .seed = c.run.seed,
          .rank = mesh.coord("island") * mesh.degree("dp") + mesh.coord("dp"),
          .world = mesh.degree("island") * mesh.degree("dp"),
          .prefetch = c.data.prefetch,
          .packing = c.data.packing,
          .unread = sizes.sequence_chunk > 0 || c.parallel.pp_slices > 1};
}

}  // namespace ring
