#include "trainer/train.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "checkpoint/reader.h"
#include "comm/host.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/stop_signal.h"
#include "data/token_store.h"
#include "evaluate/evaluate.h"
#include "evaluate/kept_files.h"
#include "job/run_phase.h"
#include "job/worker_status.h"
#include "kernels/tuning.h"
#include "text/tokenizer.h"
#include "trainer/bad_steps.h"
#include "trainer/memory_fallback.h"
#include "trainer/pace_watch.h"
#include "trainer/run_state.h"
#include "trainer/time_spent.h"

namespace ring {
namespace {

// Runs validation and the tasks of train.eval_tasks.
class Evaluations {
 public:
  Evaluations(RunContext& run, MemoryFallback& memory, const StopSignal& signal)
      : run_(run), memory_(memory), signal_(signal) {
    const auto has_validation = [](const auto& store) { return store->validation().tokens() > 1; };
    if (std::ranges::any_of(run.start.corpora.stores, has_validation)) open_validation();
  }

  bool has_validation_split() const { return validation_.has_value(); }  // true if the corpora have a validation split
  void on_rollback() { last_validation_ = last_task_evaluation_ = run_.trainer.steps_done(); }

  // Validates and grades tasks as requested, unless this has been done after this step already. Returns false if a
  // signal interrupted the evaluation.
  bool run(bool validates, bool evaluates_tasks) {
    if (!validates && !evaluates_tasks) return true;
    run_.trainer.swap_outer_weights();  // islands evaluate the outer weights
    const bool complete = evaluate_weights(validates, evaluates_tasks);
    run_.trainer.swap_outer_weights();
    return complete;
  }

 private:
  bool evaluate_weights(bool validates, bool evaluates_tasks) try {
    if (validates) validate();
    if (evaluates_tasks) evaluate_tasks();
    return true;
  } catch (const EvaluationStopped&) {
    if (run_.leads())
      log::info("skipped the rest of the evaluation after step ", run_.trainer.steps_done(),
                " because of a signal; 'ringmaster eval' can run it on the checkpoint that is saved now");
    return false;
  }

  LoaderOptions options() const {
    LoaderOptions options = loader_options(run_.config, run_.mesh);
    options.rows = memory_.evaluation_rows();
    return options;
  }

  void open_validation() {
    const Config& c = run_.config;
    validation_.emplace(run_.start.corpora, options(), c.data.validation_batches * c.train.batch_size);
  }

  void validate() {
    if (!validation_ || last_validation_ == run_.trainer.steps_done()) return;
    last_validation_ = run_.trainer.steps_done();
    enter(RunPhase::validate);
    const Evaluation latest = evaluation();
    std::optional<Evaluation> average;
    if (run_.trainer.averages() && validation_->batches() > 0) average = average_evaluation();
    if (run_.log) run_.log->log_validation(latest, average, validation_->bytes_per_token());
  }

  Evaluation evaluation() {
    while (true) try {
        if (PreferenceTraining* preference = run_.trainer.preference())
          return preference->evaluate(*validation_, run_.mesh.host(), stop_on(signal_, run_.mesh.host()));
        return evaluate(run_.trainer.model(), run_.ctx, *validation_, run_.mesh.host(), &run_.trainer.cp_batches(),
                        &run_.mesh.axis("tp"), stop_on(signal_, run_.mesh.host()));
      } catch (const OutOfMemory& problem) {
        memory_.evaluate_with_fewer(problem);
        open_validation();
      }
  }

  // An error leaves the averaged weights in place, but they are never saved, because the error ends the process.
  Evaluation average_evaluation() {
    run_.trainer.swap_average_weights();
    std::optional<Evaluation> e;
    try {
      e = evaluation();
    } catch (const EvaluationStopped&) {  // the weights are saved next, so they must be swapped back
      run_.trainer.swap_average_weights();
      throw;
    }
    run_.trainer.swap_average_weights();
    return *e;
  }

  void evaluate_tasks() {
    if (last_task_evaluation_ == run_.trainer.steps_done()) return;
    last_task_evaluation_ = run_.trainer.steps_done();
    enter(RunPhase::validate);
    std::vector<TaskResult> results;
    while (results.size() < run_.start.tasks.size()) try {
        const Task& task = run_.start.tasks[results.size()];
        const LoaderOptions o = options();
        results.push_back(grade_task(
            task,
            score(run_.trainer.model(), run_.ctx, task.requests, {o.context, o.rows, o.rank, o.world}, run_.mesh.host(),
                  &run_.trainer.cp_batches(), &run_.mesh.axis("tp"), stop_on(signal_, run_.mesh.host()))));
      } catch (const OutOfMemory& problem) {
        memory_.evaluate_with_fewer(problem);
        if (validation_) open_validation();
      }
    if (run_.log && !results.empty()) run_.log->log_task_results(results);
  }

  RunContext& run_;
  MemoryFallback& memory_;
  const StopSignal& signal_;
  std::optional<ValidationSet> validation_;
  std::int64_t last_validation_ = -1, last_task_evaluation_ = -1;  // steps of the latest evaluations
};

// The training loop of one process. Rank 0 warns and writes files; all ranks take part in saving and evaluating.
class TrainingRun {
 public:
  TrainingRun(RunStart start, const TrainOptions& options, Mesh& mesh, StopSignal& signal)
      : run_{.start = std::move(start), .mesh = mesh}, signal_(signal) {
    own_status().start.mark_reached(StartStage::built);
    state_.load_initial_state(options.kept);
    if (run_.trainer.has_islands() && holds_kept_state()) run_.trainer.set_latest(last_ = options.kept->last());
    if (options.kept) options.kept->clear();
    own_status().start.mark_reached(StartStage::loaded);
    begin(options);
    run_.trainer.observe(options.observer);
    if (run_.leads()) watcher_ = options.watcher;
    may_stay_ = options.kept && !options.watcher && own_status().replaces != 0 && may_survive();
  }

  TrainEnd run() try { return take_steps(); } catch (const RanOutOfMemory& e) {
    memory_.start_again(e);
  }

  // Call after losing a peer. Keeps the state if it is consistent, i.e. not partly updated. Otherwise this process may
  // stay only if there are other islands, since those may have kept their states.
  void keep_state(KeptState& kept) try {
    own_status().stepping = 0;
    if (signal_.requested()) own_status().can_stay = 0;
    if (own_status().can_stay == 0) return;
    const bool whole = settle_device() && run_.trainer.is_state_whole();
    if (!(whole || run_.trainer.has_islands())) own_status().can_stay = 0;
    if (own_status().can_stay == 0) return;
    const std::int64_t step = run_.trainer.steps_done();
    if (!whole) return stay_without_state(kept, str("it has begun the update of step ", step + 1, " or an exchange"));
    run_.trainer.update_own_bad_steps();
    kept.keep(state_.state(), run_.ctx.stream,
              {.step = step,
               .finished = run_.leads() && step == finished_step_,  // this process may become rank 0 only now
               .island = run_.trainer.island_place(),
               .last = run_.trainer.latest(),
               .earlier = run_.trainer.earlier(),
               .choices = run_.ctx.tuning ? run_.ctx.tuning->text() : ""});
    log::info("lost a peer; keeping the state of step ", step, " in memory and waiting for a replacement");
  } catch (const OutOfMemory& e) {
    if (run_.trainer.has_islands()) return stay_without_state(kept, e.what());
    own_status().can_stay = 0;
    log::warn("lost a peer; the state cannot be kept in memory: ", e.what());
  } catch (const WriterSuperseded&) {
    throw;
  } catch (const Error& e) {  // e.g. the device has failed
    own_status().can_stay = 0;
    log::warn("lost a peer; this process must restart: ", e.what());
  }

  void failed(const std::string& why) {
    if (run_.log) run_.log->log_failure(why);
  }

 private:
  // If this process uses a GPU, ends the queued work and records the steps that the GPU has completed but that are not
  // recorded yet. Returns false if the GPU is still busy after kLimit.
  bool settle_device() {
    constexpr std::chrono::seconds kLimit{5};  // less than the time that the launcher gives a worker to abandon a step
    if (run_.mesh.device().backend == Backend::cpu) return true;
    run_.mesh.abort("another process was lost");
    if (!run_.trainer.settle(kLimit)) {
      log::warn("lost a peer; this process must restart, because its GPU is still busy after ", kLimit.count(), " s");
      return false;
    }
    for (const StepReport& r : {run_.trainer.earlier(), run_.trainer.latest()})
      if (r.step > own_status().step) record(r);
    return true;
  }

  // Writes the run's files. If settings or data changed but no step follows, writes none: nothing was trained with the
  // change.
  void create_directory() {
    const RunDirectory& dir = run_.start.dir;
    const auto& stores = run_.start.corpora.stores;
    const auto chats = std::ranges::find_if(stores, [](const auto& s) { return !s->chat_template().empty(); });
    if (!run_.start.from.resumed.changed || !end_by_settings())
      dir.create(run_.start.config, *stores.front()->tokenizer(), run_.start.from.resumed.replaced,
                 chats == stores.end() ? "" : (*chats)->chat_template());
    else
      log::warn(dir.path(), ": the changed settings are not saved, because no step follows");
    if (!run_.start.from.resumes()) copy_kept_files(dir, run_.start.from.init_from);
    write_memory(dir, run_.start.memory);
  }

  // Called once no check can refuse the run any more.
  void begin(const TrainOptions& options) {
    if (const auto gpu = options.gpu ? options.gpu : find_gpu_sensors(run_.mesh.device())) run_.gpu.emplace(gpu);
    if (!run_.leads()) return;
    if (options.fresh) remove_all_checkpoints(run_.start.dir.checkpoints());
    create_directory();
    state_.begin_run(options.fresh);
    if (!evaluations_.has_validation_split() && run_.config.train.eval_interval)
      log::warn(
          "the corpus has no validation split, so there will be no validation loss. To make one, see `ringmaster data "
          "prepare --split`");
    run_.log = std::make_unique<RunLog>(run_.start, run_.trainer, run_.mesh.world(), run_.time,
                                        run_.gpu ? &*run_.gpu : nullptr);
    const MemoryRecord& memory = run_.start.memory;
    run_.time.on_out_of_memory(memory.ran_out);
    if (memory.ran_out) run_.log->log_memory_shortage(memory);
    count_restart(options.restarts);
  }

  // Returns true if the run can continue from the states in host memory after the loss of a peer: this process holds
  // the complete, unsharded state, or other islands hold the outer weights.
  bool may_survive() {
    const auto is_whole = [](const auto& t) { return t.second.local.shape() == t.second.global_shape; };
    if (run_.mesh.device().backend != Backend::cpu && !may_survive_on_gpu()) return false;
    return run_.trainer.has_islands() || std::ranges::all_of(state_.state().tensors(), is_whole);
  }

  // Returns whether this process can survive the loss of a peer although it uses a GPU. The GPU may have begun the step
  // after the last update by then. So no part of the state may change in a step before its update, as the statistics
  // that some models collect do. Islands are not supported.
  bool may_survive_on_gpu() {
    State collected;
    for (TrainingState* s : run_.trainer.model().training_states()) s->add_to(collected);
    return !run_.trainer.has_islands() && collected.tensors().empty() && collected.values().empty();
  }

  // Returns true if this process continues from the state that it kept.
  bool holds_kept_state() const {
    const StartingState& from = run_.start.from;
    return from.from_survivors && from.survivors->holders[static_cast<std::size_t>(run_.mesh.rank())];
  }

  static void stay_without_state(KeptState& kept, const std::string& why) {
    kept.keep_nothing();
    log::info("lost a peer; waiting for a replacement without keeping the state, because ", why);
  }

  // Ends the attempt if the launcher replaces a worker of a different island, which this one may not need for long.
  void leave_if_told() const {
    if (run_.trainer.has_islands() && own_status().must_leave != 0)
      throw PeerLost("the launcher replaces a worker of a different island");
  }

  // Sets whether this process can survive if a peer is lost now. It cannot while the loop does work that would have to
  // be repeated but that the state does not record, such as an evaluation.
  void allow_staying(bool allowed) { own_status().can_stay = allowed && may_stay_; }

  void count_restart(int restarts) {
    if (run_.start.from.from_survivors)
      count_replacement(restarts);
    else
      run_.time.on_steps_begin(restarts, run_.trainer.steps_done(), state_.loaded_state_time_ms());
    own_status().begun = 1;
    if (restarts > 0) run_.log->log_restart(run_.start.from);
  }

  // Counts the time since a survivor kept its state, so that no later restart counts it again.
  void count_replacement(int restarts) {
    const std::int64_t lost = std::max<std::int64_t>(0, now_ms() - run_.start.from.survivors->kept_ms);
    run_.time.restart_seconds += static_cast<double>(lost) / 1000;
    run_.time.since_ms += lost;
    run_.time.restarts = restarts;
    run_.time.on_rollback(run_.trainer.steps_done());
  }

  // After a replacement, does what was due after the survivors' latest step but may not have been done: records the
  // step, evaluates, and saves a checkpoint, which replaces one that was due, requested or being written.
  void catch_up() {
    const StartingState& from = run_.start.from;
    if (!from.from_survivors || from.survivors->step == 0) return;
    const std::int64_t step = from.survivors->step;
    if (run_.trainer.has_islands()) catch_up_with_islands(step);
    if (!run_.trainer.has_islands() && from.survivors->last.step == step) {
      const StepReport& earlier = from.survivors->earlier;
      last_ = from.survivors->last;
      run_.trainer.set_latest(last_);
      const bool logs = run_.log && !from.survivors->recorded;
      if (logs && earlier.step > 0 && earlier.step + 1 == step) run_.log->log_step_if_missing(earlier);
      if (logs) run_.log->log_step_if_missing(last_);
    }
    run_.trainer.end_exchange();  // if it was due after this step, but is not done
    if (!from.survivors->recorded) evaluate_if_missing(evaluations_due(run_.start, step));
    if (step == run_.config.train.steps) return;  // the run ends, which also saves
    allow_staying(true);
    const TimeAccount::Timer timer = account_.saving();
    state_.save();
  }

  // Trains this island alone up to `step`, where the other islands are. Everything that islands do together before
  // `step` was done before the loss. Only the averages over all islands for the record of `step` may be missing; if so,
  // they are computed here.
  void catch_up_with_islands(std::int64_t step) {
    alone_until_ = step;
    allow_staying(true);
    while (run_.trainer.steps_done() < step) {
      leave_if_told();
      memory_.launch();
      finish_steps(0);
    }
    run_.trainer.wait_for_islands();
    std::optional<StepReport> report = run_.start.from.survivors->report_to_average(last_, run_.mesh.rank());
    std::array<double, 1> missing{report ? 0.0 : 1.0};
    all_reduce_host(run_.mesh.host(), missing, Reduce::max);
    if (missing[0] > 0) return;
    run_.trainer.average_over_islands(*report);
    if (!holds_kept_state() && last_.step != step) report->accepted = true;  // now the average over the other islands
    if (run_.log && report->accepted) run_.log->log_step_if_missing(*report);
    last_ = *report;
  }

  void evaluate_if_missing(const EvaluationsDue& due) {
    const std::int64_t step = run_.trainer.steps_done();
    std::array<double, 2> missing{};
    if (run_.log)
      missing = {due.validation && !run_.log->has_record("validation", step) ? 1.0 : 0.0,
                 due.tasks && !run_.log->has_record("tasks", step) ? 1.0 : 0.0};
    all_reduce_host(run_.mesh.host(), missing, Reduce::max);
    evaluate_now(missing[0] > 0, missing[1] > 0);
  }

  void record(const StepReport& r) {
    own_status().step = r.step;
    run_.time.on_step_done(r.step);
    if (run_.log && r.step > alone_until_) run_.log->log_step(r);
    if (run_.log && r.step < alone_until_) run_.log->log_step_if_missing(r);  // an island that makes up steps
  }

  void log_start_times() {
    const std::string times = own_status().start.text();
    if (run_.time.restarts > 0)
      log::info("restart ", run_.time.restarts, " took ", times);
    else
      log::debug("the start took ", times);
  }

  void report(const StepReport& r) {
    state_.on_step_done(r.seconds);
    if (own_status().start.mark_reached(StartStage::stepped) && run_.leads()) log_start_times();
    record(r);
    if (pace_) pace_->on_step(r.data_seconds, run_.log.get());
  }

  bool evaluate_now(bool validates, bool evaluates_tasks) {
    if (!validates && !evaluates_tasks) return true;
    const TimeAccount::Timer timer = account_.evaluating();
    run_.trainer.wait_for_islands();  // an island that is lost meanwhile can be replaced
    allow_staying(false);
    const bool complete = evaluations_.run(validates, evaluates_tasks);
    allow_staying(true);
    return complete;
  }

  void report_watched() {
    finish_steps(0);
    run_.check_directory();
    if (last_.step)
      if (const std::string text = watcher_->report(run_.ctx); !text.empty()) run_.log->print_line(text);
    watcher_ = nullptr;
  }

  // Returns why no step follows, if that depends only on the settings.
  std::optional<TrainEnd> end_by_settings() const {
    const TrainConfig& c = run_.config.train;
    if (c.steps && run_.trainer.steps_done() >= c.steps) return TrainEnd::finished;
    if (c.minutes > 0 && run_.trainer.seconds() >= c.minutes * 60) return TrainEnd::out_of_time;
    return std::nullopt;
  }

  // Returns true if all ranks may decide together, such as to stop or save, after the latest step. Islands that train
  // alone do so only when they exchange weights, and at the start.
  bool may_agree() {
    const std::int64_t step = run_.trainer.steps_done();
    if (!run_.trainer.has_islands()) return true;
    if (agreed_after_ && (*agreed_after_ >= step || !run_.trainer.islands_meet())) return false;
    agreed_after_ = step;
    return true;
  }

  // Makes all ranks take the same next action, even if only one was told to stop or is still saving. Rank 0's clock
  // decides.
  bool agree_on_next_action(TrainEnd& end) {
    const std::optional<TrainEnd> by_settings = end_by_settings();
    if (by_settings == TrainEnd::finished) return end = TrainEnd::finished, false;
    save_due_ = false;
    if (!may_agree()) return true;
    enum { told, out_of_time, saving, save_due, asked, count };
    std::array<double, count> votes{};
    votes[told] = signal_.requested();
    votes[out_of_time] = by_settings == TrainEnd::out_of_time;
    votes[saving] = state_.saving();
    votes[asked] = signal_.save_requested();
    votes[save_due] = run_.leads() && state_.due_by_clock();
    run_.trainer.wait_for_islands();
    all_reduce_host(run_.mesh.host(), votes, Reduce::max);
    if (!votes[saving]) state_.end_save();
    save_due_ = votes[save_due] > 0 || votes[asked] > 0;
    if (votes[asked]) signal_.on_save_begin();
    if (votes[told]) return end = TrainEnd::interrupted, false;
    if (votes[out_of_time]) return end = TrainEnd::out_of_time, false;
    return true;
  }

  // Call after everything that was due after a step. Returns true if another step follows; otherwise sets `end`.
  bool goes_on(TrainEnd& end) {
    finished_step_ = run_.trainer.steps_done();
    allow_staying(true);
    leave_if_told();
    return agree_on_next_action(end);
  }

  // Reads the results of launched steps until at most `left_in_flight` remain.
  void finish_steps(std::size_t left_in_flight) {
    while (run_.trainer.in_flight() > left_in_flight) {
      last_ = run_.trainer.finish();
      if (!last_.accepted) {
        allow_staying(false);
        retry_or_skip_bad_step();
        allow_staying(true);
      }
      if (last_.step > alone_until_) run_.trainer.average_over_islands(last_);
      if (!last_.accepted) continue;
      report(last_);
      state_.save_choices();  // new kernel choices are on disk before anything depends on them
    }
  }

  // Computes a rejected step again, or skips it. Adds up the time lost, including earlier steps that a rollback
  // discards.
  void retry_or_skip_bad_step() {
    const double began = seconds_now() - last_.seconds, kept = run_.trainer.seconds();
    ++run_.time.bad_steps;
    run_.time.steps_again += run_.config.run.deterministic;
    const StepReport bad = std::exchange(last_, bad_steps_.recompute_step(last_));
    if (!last_.accepted)
      skip_samples();
    else if (run_.log)
      run_.log->log_recomputed_step(bad, last_);
    run_.time.bad_step_seconds +=
        seconds_now() - began + (last_.accepted ? -last_.seconds : kept - run_.trainer.seconds());
  }

  // Skips a step that was not accepted even after it was computed again.
  void skip_samples() {
    const bool stops = run_.trainer.guard().action_for_bad_step(run_.trainer.steps_done() + 1) == OnBadStep::stop;
    if (run_.log && stops) run_.log->log_fatal_step(last_);
    if (run_.trainer.has_islands()) {
      bad_steps_.pass_over(last_, state_.has_checkpoint());
      if (run_.log) run_.log->log_bad_step(run_.trainer.guard().bad_steps().back());
      return;
    }
    state_.end_save();
    const bool rolled_back = bad_steps_.skip_or_roll_back(last_, state_.has_checkpoint());
    if (rolled_back) {
      evaluations_.on_rollback();
      state_.on_rollback();
      own_status().step = run_.trainer.steps_done();
      if (run_.log) run_.log->log_rollback();
    }
    if (run_.log) run_.log->log_bad_step(run_.trainer.guard().bad_steps().back());
  }

  // At the end of the run, validates before saving: otherwise the validation would be lost if the process is killed
  // after the save.
  TrainEnd take_steps() {
    TrainEnd end = TrainEnd::finished;
    signal_.on_steps_begin();
    account_ = {};
    if (run_.mesh.world() > 1 || run_.gpu) pace_.emplace(run_.trainer.island_host(), run_.gpu ? &*run_.gpu : nullptr);
    own_status().step = run_.trainer.steps_done();
    own_status().stepping = 1;
    catch_up();
    while (goes_on(end)) {
      if (watcher_) watcher_->before_launch(run_.trainer);
      run_.trainer.begin_exchange();
      memory_.launch();
      if (watcher_ && watcher_->after_launch(run_.trainer)) report_watched();
      const std::int64_t step = run_.trainer.steps_done();
      const bool ends = step == run_.config.train.steps;
      const EvaluationsDue due = evaluations_due(run_.start, step);
      const bool saves = !ends && state_.should_save(save_due_),
                 saves_to_agent = !ends && !saves && state_.should_save_to_agent();
      const bool waits = due || saves || saves_to_agent || ends || run_.trainer.must_finish(step);
      finish_steps(waits ? 0 : run_.trainer.max_in_flight());
      if (run_.trainer.steps_done() != step) continue;  // the step was skipped
      run_.trainer.end_exchange();
      if (!evaluate_now(due.validation, due.tasks)) continue;  // a signal ends the run
      if (!saves && !saves_to_agent) continue;
      const TimeAccount::Timer timer = account_.saving();
      saves ? state_.save() : state_.save_to_agent();
    }
    finish_steps(0);
    may_stay_ = false;
    allow_staying(false);
    if (watcher_) report_watched();
    if (end != TrainEnd::interrupted && last_.step) evaluate_now(true, true);
    {
      const TimeAccount::Timer timer = account_.saving();
      state_.save_last();
    }
    if (run_.log) run_.log->log_end(end, account_.spent());
    return end;
  }

  RunContext run_;
  StopSignal& signal_;
  MemoryFallback memory_{run_};
  Evaluations evaluations_{run_, memory_, signal_};
  RunState state_{run_};
  BadSteps bad_steps_{run_.config, run_.start.dir, run_.trainer, state_.state(), run_.mesh};
  std::optional<PaceWatch> pace_;  // set if there are several ranks or a GPU
  StepWatcher* watcher_ = nullptr;
  TimeAccount account_;              // starts with the first step
  bool may_stay_ = false;            // true if this process can survive the loss of a peer
  std::int64_t finished_step_ = -1;  // latest step after which all that was due, e.g. an evaluation, is done
  StepReport last_;
  std::int64_t alone_until_ = 0;  // last step that this island makes up without the others after a replacement
  std::optional<std::int64_t> agreed_after_;  // step after which islands last decided together
  bool save_due_ = false;                     // true if due by rank 0's clock or requested by a signal
};

}  // namespace

TrainEnd train(Config config, const TrainOptions& options, Mesh& mesh, StopSignal& signal) {
  log::set_rank(mesh.rank(), mesh.world());
  if (config.checkpoint.on_usr1 == OnUsr1::go_on) signal.usr1_saves();
  TrainingRun run(start_run(std::move(config), options, mesh), options, mesh, signal);
  try {
    return run.run();
  } catch (const PeerLost&) {  // another process reports the cause
    if (options.kept) run.keep_state(*options.kept);
    throw;
  } catch (const WriterSuperseded&) {  // another process owns the run's files now
    throw;
  } catch (const std::exception& e) {
    run.failed(e.what());
    throw;
  }
}

}  // namespace ring
