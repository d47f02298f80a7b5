#include "trainer/train.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>

#include "checkpoint/directory.h"
#include "checkpoint/failures.h"
#include "checkpoint/reader.h"
#include "checkpoint/save_clock.h"
#include "checkpoint/saver.h"
#include "comm/host.h"
#include "core/checked.h"
#include "core/clock.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/log.h"
#include "core/stop_signal.h"
#include "data/token_store.h"
#include "engine/agreement.h"
#include "engine/devices.h"
#include "engine/origin.h"
#include "evaluate/evaluate.h"
#include "evaluate/generation_config.h"
#include "evaluate/session.h"
#include "job/environment.h"
#include "job/run_phase.h"
#include "job/worker_page.h"
#include "kernels/tuning.h"
#include "text/tokenizer.h"
#include "trainer/bad_steps.h"
#include "trainer/pace_watch.h"
#include "trainer/run_log.h"
#include "trainer/run_start.h"
#include "trainer/time_spent.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

bool has_validation(const Corpora& corpora) {
  return std::any_of(corpora.stores.begin(), corpora.stores.end(),
                     [](const auto& s) { return s->validation().tokens() > 1; });
}

// Returns a file's time on the clock of now_ms(), or 0 if it lies in the future: the system clock was set back since.
std::int64_t milliseconds_of(std::filesystem::file_time_type t) {
  const auto ago = std::chrono::floor<std::chrono::milliseconds>(std::filesystem::file_time_type::clock::now() - t);
  return ago.count() < 0 ? 0 : now_ms() - ago.count();
}

std::int64_t saved_at(const std::string& checkpoint) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(checkpoint + "/" + kManifestName, error);
  return error ? 0 : milliseconds_of(time);
}

// What one process does between steps. Rank 0 warns and writes; every rank takes part in saving and evaluating.
class Loop {
 public:
  Loop(RunStart start, const TrainOptions& options, Mesh& mesh, StopSignal& signal)
      : start_(std::move(start)),
        config_(start_.steps),
        mesh_(mesh),
        dir_(start_.dir),
        ctx_(make_exec_context(config_, mesh.device().index)),
        loader_(*start_.loader),
        trainer_(config_, ctx_, mesh_, loader_, start_.max_memory()),
        signal_(signal),
        saver_(config_.checkpoint, dir_.checkpoints(), mesh_, saver_parts(),
               [this](const SaveOutcome& o) { report_save(o); }) {
    own_page().start.reach(StartStage::built);
    load();
    own_page().start.reach(StartStage::loaded);
    start_.memory.take(trainer_.memory());
    begin(options);
    trainer_.observe(options.observer);
    if (leader()) watcher_ = options.watcher;
  }

  TrainEnd run();
  void failed(const std::string& why) {
    if (log_) log_->failed(why);
  }

 private:
  TrainEnd take_steps();
  void launch();
  void record_shortages();
  void record_memory(const MemoryRecord& smaller);
  [[noreturn]] void start_again(const MemoryRecord&) const;
  std::string metadata() const { return checkpoint_metadata(start_.config, start_.memory, ctx_.tuning.get()); }
  bool leader() const { return mesh_.rank() == 0; }
  SaverParts saver_parts();
  void load();
  void load_checkpoint();
  void load_initial_weights();
  void begin(const TrainOptions&);
  void count_restart(int restarts);
  void check_directory() const;
  void save_choices();
  std::optional<TrainEnd> end_by_settings() const;
  bool step_now(TrainEnd&);
  bool keep_now(bool ends) const;
  bool save_now(bool ends) const;
  void finish_steps(std::size_t left_in_flight);
  void cure();
  void leave_out();
  void report(const StepReport&);
  void open_validation();
  void validate();
  bool evaluate_now(bool validates, bool judges);
  Evaluation evaluation();
  Evaluation average_evaluation();
  void validate_with_fewer(const OutOfMemory&);
  void judge_tasks();
  LoaderOptions evaluation_options();
  void save();
  void keep();
  void save_last();
  void report_save(const SaveOutcome&);
  void report_watched();

  RunStart start_;
  const Config& config_;
  Mesh& mesh_;
  const RunDirectory& dir_;
  ExecContext ctx_;
  Loader& loader_;
  Trainer trainer_;
  StopSignal& signal_;
  std::string data_;
  State state_;
  BadSteps bad_steps_{config_, dir_, trainer_, state_, mesh_};
  std::optional<ValidationSet> validation_;
  std::optional<GpuWatch> gpu_;    // of this rank
  std::optional<RunLog> log_;      // of rank 0
  std::optional<PaceWatch> pace_;  // of several ranks, or of a GPU
  StepWatcher* watcher_ = nullptr;
  TimeAccount account_;  // from the first step on
  StepReport last_;
  std::size_t recorded_ = 0;               // of the trainer's shortages of memory
  std::int64_t validated_step_ = -1;       // the latest
  std::int64_t judged_step_ = -1;          // the latest at which tasks were evaluated
  std::vector<std::int64_t> passed_over_;  // steps of damaged checkpoints
  SaveClock clock_{config_.checkpoint, seconds_now()};
  bool save_due_ = false;  // by rank 0's clock, or asked for by a signal
  std::optional<Failures> failures_;
  JobTime& time_ = own_page().time;
  std::int64_t save_asked_ms_ = 0;  // of the latest
  Saver saver_;                     // last: its end waits for the save under way
};

// The state is complete before anything saves it.
SaverParts Loop::saver_parts() {
  trainer_.add_state(state_);
  state_.add(kFingerprintName, &data_);
  Saving& saving = start_.saving;
  saving.keeps = saving.keeps && reserve_together(*start_.tier, state_, ctx_.stream, mesh_.host());
  return {saving, start_.token.get(), start_.tier.get()};
}

void Loop::load() {
  enter(RunPhase::load);
  if (start_.from.resumes())
    load_checkpoint();
  else if (!start_.from.init_from.empty())
    load_initial_weights();
  saver_.reserve(state_, ctx_.stream);
  data_ = start_.data;
}

void Loop::load_checkpoint() {
  const Manifest manifest = start_.from.kept ? start_.tier->load(*start_.from.kept, state_, ctx_.stream)
                                             : load_state(start_.from.resumed.checkpoint, state_, ctx_.stream);
  if (config_.train.steps && manifest.step > config_.train.steps)
    fail("train.steps: the run has done ", manifest.step, " steps, more than ", config_.train.steps,
         ": give at least as many, or start over with --fresh");
  if (leader() && !start_.from.kept && manifest.world != mesh_.world())
    log::warn("the checkpoint is of ", counted(manifest.world, "process"), ", now there ",
              mesh_.world() == 1 ? "is " : "are ", mesh_.world(),
              ": sums are rounded in another order, so that losses agree closely instead of bit for bit");
  if (leader() && !start_.from.kept && manifest.world != mesh_.world() && config_.run.threads != default_threads())
    log::warn("run.threads: ", config_.run.threads, " in each process, as they were before; this layout would take ",
              default_threads(), ": set run.threads=", default_threads());
  const std::size_t replaced = ctx_.tuning ? adopt_choices(*ctx_.tuning, manifest.metadata) : 0;
  if (leader() && replaced > 0)
    log::warn(counted(static_cast<std::int64_t>(replaced), "measured choice"),
              " in tuning.yaml differed from the checkpoint's, which apply: the run continues bit-identically");
  trainer_.restored();
  if (!start_.from.kept) saver_.start_from(trainer_.steps_done());
  for (const CheckpointEntry& newer : list_checkpoints(dir_.checkpoints()))
    if (newer.step > trainer_.steps_done()) passed_over_.push_back(newer.step);
}

// The other run may go on and remove the checkpoint meanwhile: then all ranks take a newer one.
void Loop::load_initial_weights() {
  for (int look = 0; look < kMostLooks; ++look) {
    const FolderIdentity before = identity_of(start_.from.init_from);
    std::string problem;
    try {
      trainer_.load_weights(start_.from.init_from);
    } catch (const Error& e) {
      problem = e.what();
    }
    const bool gone = any_host(mesh_.host(), !before || identity_of(start_.from.init_from) != before);
    if (!gone && !problem.empty()) fail(problem);
    if (!gone) return agree_on_checkpoint(start_.from.init_from, mesh_);
    start_.from.init_from = find_initial_weights(start_, mesh_);
  }
  fail_outpaced(config_.run.init_from);
}

// Now that nothing can be refused any more.
void Loop::begin(const TrainOptions& options) {
  if (has_validation(start_.corpora)) open_validation();
  if (const auto gpu = options.gpu ? options.gpu : sensors_of(mesh_.device())) gpu_.emplace(gpu);
  if (!leader()) return;
  if (options.fresh) remove_all_checkpoints(dir_.checkpoints());
  const auto& stores = start_.corpora.stores;
  const auto chats = std::ranges::find_if(stores, [](const auto& s) { return !s->chat_template().empty(); });
  // Settings and data that were changed for the next steps say nothing true of a run that has none to come.
  if (!start_.from.resumed.changed || !end_by_settings())
    dir_.create(start_.config, *stores.front()->tokenizer(), start_.from.resumed.replaced,
                chats == stores.end() ? "" : (*chats)->chat_template());
  else
    log::warn(dir_.path(), ": the changed settings are not saved, since no step follows");
  if (!start_.from.resumes()) keep_generation_config(dir_, start_.from.init_from);
  write_memory(dir_, start_.memory);
  failures_.emplace(dir_.failures_file(), options.fresh);
  clock_.failures(failures_->count());
  if (!validation_ && config_.train.eval_interval)
    log::warn(
        "the corpus has no validation split: there will be no validation loss. See `ringmaster data prepare --split`");
  log_.emplace(start_, trainer_, mesh_.world(), time_, gpu_ ? &*gpu_ : nullptr);
  time_.memory_ran_out(start_.memory.ran_out);
  if (start_.memory.ran_out) log_->memory(start_.memory);
  count_restart(options.restarts);
}

LoaderOptions Loop::evaluation_options() {
  LoaderOptions options = loader_options(config_, mesh_);
  if (start_.memory.validation_micro_batch) options.rows = std::min(options.rows, start_.memory.validation_micro_batch);
  return options;
}

void Loop::open_validation() {
  validation_.emplace(start_.corpora, evaluation_options(), config_.data.validation_batches * config_.train.batch_size);
}

void Loop::count_restart(int restarts) {
  const std::int64_t saved =
      start_.from.kept ? milliseconds_of(start_.tier->loaded_from()) : saved_at(start_.from.resumed.checkpoint);
  time_.steps_begin(restarts, trainer_.steps_done(), saved);
  own_page().begun = 1;
  if (restarts > 0) log_->restarted();
}

void Loop::report(const StepReport& r) {
  clock_.step(r.seconds, saver_.working());
  own_page().step = r.step;
  if (own_page().start.reach(StartStage::stepped) && leader() && time_.restarts > 0)
    log::info("restart ", time_.restarts, " took ", own_page().start.text());
  time_.step_done(r.step);
  if (pace_) pace_->step(r.data_seconds, log_ ? &*log_ : nullptr);
  if (log_) log_->step(r);
}

void Loop::validate() {
  if (!validation_ || validated_step_ == trainer_.steps_done()) return;
  validated_step_ = trainer_.steps_done();
  enter(RunPhase::validate);
  const Evaluation latest = evaluation();
  std::optional<Evaluation> average;
  if (trainer_.averages() && validation_->batches() > 0) average = average_evaluation();
  if (log_) log_->validated(latest, average, validation_->bytes_per_token());
}

Evaluation Loop::evaluation() {
  while (true) try {
      return evaluate(trainer_.model(), ctx_, *validation_, mesh_.host(), &trainer_.cp_batches(), &mesh_.axis("tp"),
                      stop_on(signal_, mesh_.host()));
    } catch (const OutOfMemory& problem) {
      validate_with_fewer(problem);
    }
}

// Whatever an error leaves behind is never saved: it ends the process.
Evaluation Loop::average_evaluation() {
  trainer_.exchange_average();
  std::optional<Evaluation> e;
  try {
    e = evaluation();
  } catch (const EvaluationStopped&) {  // the weights are saved next
    trainer_.exchange_average();
    throw;
  }
  trainer_.exchange_average();
  return *e;
}

// Validates and judges tasks as asked. Returns false if a signal ended that early.
bool Loop::evaluate_now(bool validates, bool judges) try {
  const TimeAccount::Timer timer = account_.evaluating();
  if (validates) validate();
  if (judges) judge_tasks();
  return true;
} catch (const EvaluationStopped&) {
  if (leader())
    log::info("left out the rest of the evaluation after step ", trainer_.steps_done(),
              ", as a signal asks; 'ringmaster eval' does it with the checkpoint that is saved now");
  return false;
}

void Loop::judge_tasks() {
  if (judged_step_ == trainer_.steps_done()) return;
  judged_step_ = trainer_.steps_done();
  enter(RunPhase::validate);
  std::vector<TaskResult> results;
  while (results.size() < start_.tasks.size()) try {
      const Task& task = start_.tasks[results.size()];
      const LoaderOptions o = evaluation_options();
      results.push_back(
          judge(task, score(trainer_.model(), ctx_, task.requests, {o.context, o.rows, o.rank, o.world}, mesh_.host(),
                            &trainer_.cp_batches(), &mesh_.axis("tp"), stop_on(signal_, mesh_.host()))));
    } catch (const OutOfMemory& problem) {
      validate_with_fewer(problem);
    }
  if (log_ && !results.empty()) log_->judged(results);
}

// Between steps their memory is free, so that less of it would not help: fewer sequences at a time do.
void Loop::validate_with_fewer(const OutOfMemory& e) {
  const std::int64_t rows = evaluation_options().rows;
  const std::optional<std::int64_t> fewer = fewer_sequences(config_, mesh_.world(), rows);
  if (!fewer)
    throw OutOfMemory(e.facts,
                      "A validation computes as few sequences at a time as it can: lower model.context, set "
                      "train.mlp_chunk or a smaller train.loss_chunk_bytes, or share the model or its sequences among "
                      "more processes (parallel)");
  const std::string where = trainer_.arena().failed_in();
  const std::string why =
      str(mesh_.world() > 1 ? str("rank ", mesh_.rank(), " ") : "", "ran out of memory in ",
          where.empty() ? "" : where + " in ", "the validation after step ", trainer_.steps_done(), " (", e.facts,
          "); from now on validations compute ", counted(*fewer, "sequence"), " at a time instead of ", rows);
  const MemoryRecord next = start_.memory.validating(*fewer, why);
  if (mesh_.world() > 1) start_again(next);
  log::warn(why);
  record_memory(next);
  if (validation_) open_validation();
}

// What the state is now. The file system may take its time while steps go on.
void Loop::save() {
  const std::int64_t step = trainer_.steps_done();
  if (saver_.has_begun(step)) return;
  enter(RunPhase::snapshot);
  trainer_.agree();  // a run that is resumed from here has these choices, so this one goes on with them, too
  save_choices();
  mesh_.check();
  save_asked_ms_ = now_ms();
  clock_.began(seconds_now());
  const Retention keep{narrow<int>(config_.checkpoint.keep_last), config_.checkpoint.keep_every, passed_over_};
  trainer_.keep_state_until(saver_.begin(state_, ctx_.stream, step, metadata(), keep));
}

// The same for the launcher to keep, without a file.
void Loop::keep() {
  enter(RunPhase::snapshot);
  trainer_.agree();
  save_choices();
  mesh_.check();
  const std::int64_t step = trainer_.steps_done(), asked = now_ms();
  const KeptOutcome o = saver_.keep(state_, ctx_.stream, step, metadata());
  trainer_.keep_state_until(o.copied);
  time_.save_seconds += o.stall_seconds;
  time_.saved(step, asked, o.stall_seconds);
  if (log_) log_->kept(step, o);
}

// Before the process ends.
void Loop::save_last() {
  const TimeAccount::Timer timer = account_.saving();
  saver_.end(trainer_.steps_done());
  save();
  saver_.end_last(trainer_.steps_done());
}

void Loop::report_save(const SaveOutcome& o) {
  time_.save_seconds += o.stall_seconds;
  time_.failed_saves += !o.saved();
  if (o.saved()) time_.saved(o.step, save_asked_ms_, o.stall_seconds);
  if (o.saved()) clock_.ended(o.stall_seconds);
  if (o.saved()) std::erase(passed_over_, o.step);
  if (!log_) return;
  const std::optional<double> seconds_between =
      config_.checkpoint.automatic ? std::optional(clock_.between(trainer_.seconds())) : std::nullopt;
  log_->saved(o, saver_.failures(), seconds_between);
}

void Loop::report_watched() {
  finish_steps(0);
  check_directory();
  if (last_.step)
    if (const std::string text = watcher_->report(ctx_); !text.empty()) log_->line(text);
  watcher_ = nullptr;
}

// Throws an Error on rank 0 if the run's directory is no longer this process's. Call before a file in it is opened.
void Loop::check_directory() const {
  if (leader()) start_.token->check();
}

// Saves what was measured on the device since the last call.
void Loop::save_choices() {
  if (!leader() || !ctx_.tuning || !ctx_.tuning->is_changed()) return;
  check_directory();
  ctx_.tuning->save();
}

// Returns why no step follows, as far as settings alone say so.
std::optional<TrainEnd> Loop::end_by_settings() const {
  const TrainConfig& c = config_.train;
  if (c.steps && trainer_.steps_done() >= c.steps) return TrainEnd::finished;
  if (c.minutes > 0 && trainer_.seconds() >= c.minutes * 60) return TrainEnd::out_of_time;
  return std::nullopt;
}

// What the ranks do next is the same on all, whoever was told to stop, whose save takes longest, and by rank 0's clock.
bool Loop::step_now(TrainEnd& end) {
  const std::optional<TrainEnd> by_settings = end_by_settings();
  if (by_settings == TrainEnd::finished) return end = TrainEnd::finished, false;
  enum { told, out_of_time, saving, save_due, asked, count };
  std::array<double, count> votes{};
  votes[told] = signal_.requested();
  votes[out_of_time] = by_settings == TrainEnd::out_of_time;
  votes[saving] = saver_.working();
  votes[asked] = signal_.save_requested();
  votes[save_due] = leader() && clock_.due(seconds_now(), trainer_.seconds());
  all_reduce_host(mesh_.host(), votes, Reduce::max);
  if (!votes[saving]) saver_.end(trainer_.steps_done());
  save_due_ = votes[save_due] > 0 || votes[asked] > 0;
  if (votes[asked]) signal_.save_begins();
  if (votes[told]) return end = TrainEnd::interrupted, false;
  if (votes[out_of_time]) return end = TrainEnd::out_of_time, false;
  return true;
}

// Both: after the step that was launched last. At the end of the run validation comes first: a kill must not lose it.
bool Loop::keep_now(bool ends) const {
  return !ends && start_.saving.keeps && trainer_.steps_done() % config_.checkpoint.memory_interval == 0;
}

bool Loop::save_now(bool ends) const {
  const CheckpointConfig& c = config_.checkpoint;
  const std::int64_t step = trainer_.steps_done();
  return !ends && (save_due_ || saver_.retry_due(step) || (!c.automatic && c.interval && step % c.interval == 0));
}

// Reads the results of launched steps, until so many are left in flight.
void Loop::finish_steps(std::size_t left_in_flight) {
  while (trainer_.in_flight() > left_in_flight) {
    last_ = trainer_.finish();
    if (!last_.accepted) cure();
    if (!last_.accepted) continue;
    report(last_);
    save_choices();  // before anything depends on it
  }
}

// A step that was not accepted is computed again, or left out. Either costs time, and so do the steps before it that a
// rollback forgets.
void Loop::cure() {
  const double began = seconds_now() - last_.seconds, kept = trainer_.seconds();
  ++time_.bad_steps;
  time_.steps_again += config_.run.deterministic;
  const StepReport bad = std::exchange(last_, bad_steps_.compute_again(last_));
  if (!last_.accepted)
    leave_out();
  else if (log_)
    log_->computed_again(bad, last_);
  time_.bad_step_seconds += seconds_now() - began + (last_.accepted ? -last_.seconds : kept - trainer_.seconds());
}

// Leaves out a step that was not accepted, also when it was computed again.
void Loop::leave_out() {
  const bool stops = trainer_.guard().judge(trainer_.steps_done() + 1) == OnBadStep::stop;
  if (log_ && stops) log_->stopped_by(last_);
  saver_.end(trainer_.steps_done());
  const bool rolled_back =
      bad_steps_.leave_out(last_, saver_.saved_step() >= 0 || !start_.from.resumed.checkpoint.empty());
  if (rolled_back) {
    data_ = start_.data;
    validated_step_ = judged_step_ = trainer_.steps_done();
    saver_.start_from(validated_step_);
    saver_.forget_kept();
    time_.rolled_back(validated_step_);
    check_directory();
    if (log_) log_->rolled_back();
  }
  if (log_) log_->bad_step(trainer_.guard().bad_steps().back());
}

void Loop::record_memory(const MemoryRecord& smaller) {
  start_.memory = smaller;
  if (!leader()) return;
  check_directory();
  write_memory(dir_, start_.memory);
  log_->memory(start_.memory);
  time_.memory_ran_out(start_.memory.ran_out);
}

// Memory may have run out in this step, more than once, or in one that was computed again before.
void Loop::record_shortages() {
  const std::vector<Trainer::Shortage>& all = trainer_.shortages();
  for (; recorded_ < all.size(); ++recorded_)
    record_memory(start_.memory.smaller(all[recorded_].next, all[recorded_].why));
}

// What a step went down to before nothing smaller was left is recorded, too.
void Loop::launch() {
  try {
    trainer_.launch();
  } catch (const OutOfMemory&) {
    record_shortages();
    throw;
  }
  record_shortages();
}

// Where several ranks have to start again, this one leaves word with what.
void Loop::start_again(const MemoryRecord& next) const {
  try {
    note_memory(dir_, mesh_.rank(), next);
  } catch (const std::exception& problem) {
    fail(next.why, ", but that cannot be recorded: ", problem.what());
  }
  const bool launched = parse_environment(current_environment()).source == "ringmaster";
  throw MemoryRecorded(str(next.why, launched ? "" : ". That is recorded: run the same command again"));
}

TrainEnd Loop::run() try { return take_steps(); } catch (const RanOutOfMemory& e) {
  start_again(start_.memory.smaller(e.next, e.what()));
}

TrainEnd Loop::take_steps() {
  TrainEnd end = TrainEnd::finished;
  signal_.steps_begin();
  account_ = {};
  if (mesh_.world() > 1 || gpu_) pace_.emplace(mesh_.host(), gpu_ ? &*gpu_ : nullptr);
  own_page().step = trainer_.steps_done();
  own_page().stepping = 1;
  while (step_now(end)) {
    if (watcher_) watcher_->before_launch(trainer_);
    launch();
    if (watcher_ && watcher_->after_launch(trainer_)) report_watched();
    const std::int64_t step = trainer_.steps_done(), every = config_.train.eval_interval;
    const bool ends = step == config_.train.steps, validates = every && step % every == 0;
    const std::int64_t tasks_every = config_.train.eval_tasks_interval ? config_.train.eval_tasks_interval : every;
    const bool judges = !start_.tasks.empty() && tasks_every && step % tasks_every == 0;
    const bool saves = save_now(ends), keeps = !saves && keep_now(ends);
    finish_steps(validates || judges || saves || keeps || ends ? 0 : trainer_.most_in_flight());
    if (trainer_.steps_done() != step) continue;     // it was left out
    if (!evaluate_now(validates, judges)) continue;  // the signal ends the run
    if (!saves && !keeps) continue;
    const TimeAccount::Timer timer = account_.saving();
    saves ? save() : keep();
  }
  finish_steps(0);
  if (watcher_) report_watched();
  if (end != TrainEnd::interrupted && last_.step) evaluate_now(true, true);
  save_last();
  check_directory();
  if (failures_) failures_->ended_well();
  if (log_) log_->end(end, account_.spent());
  return end;
}

}  // namespace

TrainEnd train(Config config, const TrainOptions& options, Mesh& mesh, StopSignal& signal) {
  log::set_rank(mesh.rank(), mesh.world());
  if (config.checkpoint.on_usr1 == OnUsr1::go_on) signal.usr1_saves();
  Loop loop(start_run(std::move(config), options, mesh), options, mesh, signal);
  try {
    return loop.run();
  } catch (const PeerLost&) {  // what ended the run is known elsewhere
    throw;
  } catch (const TakenOver&) {  // the run's files belong to another process
    throw;
  } catch (const std::exception& e) {
    loop.failed(e.what());
    throw;
  }
}

}  // namespace ring
