#include "trainer/train.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <optional>

#include "checkpoint/directory.h"
#include "checkpoint/failures.h"
#include "checkpoint/reader.h"
#include "checkpoint/save_clock.h"
#include "checkpoint/saver.h"
#include "comm/host.h"
#include "comm/worker_page.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/fields.h"
#include "core/log.h"
#include "core/stop_signal.h"
#include "data/token_store.h"
#include "data/tokenizer.h"
#include "kernels/attention/blocks.h"
#include "kernels/tuning.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "trainer/agreement.h"
#include "trainer/bad_steps.h"
#include "trainer/devices.h"
#include "trainer/evaluate.h"
#include "trainer/metrics.h"
#include "trainer/origin.h"
#include "trainer/progress.h"
#include "trainer/run_start.h"
#include "trainer/session.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

constexpr std::size_t kMostUnrecorded = 1000;

bool has_validation(const Corpora& corpora) {
  return std::any_of(corpora.stores.begin(), corpora.stores.end(),
                     [](const auto& s) { return s->validation().tokens() > 1; });
}

// Advice: padding does no harm, but the tokens of another tokenizer would not be these.
void warn_of_vocabulary(const Config& c, std::int64_t corpus_vocab) {
  if (c.model.vocab_size > corpus_vocab)
    log::warn("model.vocab_size: ", c.model.vocab_size, " is larger than the vocabulary of the corpus, ", corpus_vocab,
              ": the model spends memory and time on ", counted(c.model.vocab_size - corpus_vocab, "token"),
              " that it never sees. Set it to 0 to take the corpus's, unless this is meant as padding");
}

// Advice, where documents will not be treated as if each were alone.
void warn_of_places(const Config& c) {
  if (!c.data.packing.documents) return;
  std::int64_t layer = 0;
  for (const Pattern& p : patterns_of(c.model)) {
    std::vector<std::int64_t> units;
    if (p.blocks) units.push_back(p.blocks->block());
    if (p.from_row)
      for (const Branch& b : p.branches) units.push_back(b.segment < c.model.context ? b.segment : b.rate);
    for (const std::int64_t unit : units)
      if (c.data.packing.align % unit)
        return log::warn("data.packing.align: ", c.data.packing.align, " is no multiple of ", unit, ", a ",
                         p.blocks ? "block" : "segment", " of the attention of layer ", layer,
                         ": what a document's tokens see then depends on where in its sample it starts. A multiple of "
                         "all segments and blocks prevents that, at the price of padding");
    ++layer;
  }
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::int64_t milliseconds_of(std::chrono::system_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(t.time_since_epoch()).count();
}

// Milliseconds since 1970; 0: there is no checkpoint.
std::int64_t saved_at(const std::string& checkpoint) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(checkpoint + "/" + kManifestName, error);
  return error ? 0
               : milliseconds_of(
                     std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::file_clock::to_sys(time)));
}

// What one process does between steps. Rank 0 warn and writes; every rank takes part in saving and evaluating.
class Loop {
 public:
  Loop(RunStart start, const TrainOptions& options, Mesh& mesh, StopSignal& signal)
      : start_(std::move(start)),
        config_(start_.config),
        mesh_(mesh),
        dir_(start_.dir),
        ctx_(make_exec_context(config_, mesh.device().index)),
        loader_(*start_.loader),
        trainer_(config_, ctx_, mesh_, loader_),
        signal_(signal),
        saver_(config_.checkpoint, dir_.checkpoints(), mesh_, [this](const SaveOutcome& o) { report_save(o); }) {
    trainer_.add_state(state_);
    state_.add(kFingerprintName, &data_);
    load();
    begin(options);
    trainer_.observe(options.observer);
    if (leader()) watcher_ = options.watcher;
  }

  TrainEnd run();

 private:
  bool leader() const { return mesh_.rank() == 0; }
  void load();
  void load_checkpoint();
  void load_initial_weights();
  void begin(const TrainOptions&);
  void count_restart(int restarts);
  void describe();
  bool step_now(TrainEnd&);
  bool save_now(bool ends) const;
  void finish_steps(std::size_t left_in_flight);
  void leave_out();
  std::string layout_text() const;
  void report(const StepReport&);
  void record_unrecorded();
  std::int64_t sent_keys();
  void report_plan();
  void validate();
  void save();
  void save_last();
  void report_save(const SaveOutcome&);
  void report_watched();
  ProgressState progress_state(const StepReport&) const;

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
  std::optional<Metrics> metrics_;
  std::optional<Progress> progress_;
  StepWatcher* watcher_ = nullptr;
  std::optional<double> val_loss_;
  double flops_per_token_ = flops_per_token(config_.model);
  StepReport last_;
  bool plan_reported_ = false;
  std::int64_t validated_step_ = -1;       // the latest
  std::vector<std::int64_t> passed_over_;  // steps of damaged checkpoints
  SaveClock clock_{config_.checkpoint, now()};
  bool save_due_ = false;         // by rank 0's clock
  std::int64_t save_errors_ = 0;  // of this process
  std::optional<Failures> failures_;
  double interval_seconds_ = 0;  // since the last record
  std::int64_t interval_tokens_ = 0;
  std::deque<StepReport> unrecorded_;  // the same, at most kMostUnrecorded of them
  Saver saver_;                        // last: its end waits for the save under way
};

void Loop::load() {
  if (!start_.checkpoint.empty())
    load_checkpoint();
  else if (!start_.init_from.empty())
    load_initial_weights();
  data_ = start_.data;
}

void Loop::load_checkpoint() {
  const Manifest manifest = load_state(start_.checkpoint, state_, ctx_.stream);
  if (config_.train.steps && manifest.step > config_.train.steps)
    fail("train.steps: the run has done ", manifest.step, " steps, more than ", config_.train.steps,
         ": give at least as many, or start over with --fresh");
  if (leader() && manifest.world != mesh_.world())
    log::warn("the checkpoint is of ", counted(manifest.world, "process"), ", now there ",
              mesh_.world() == 1 ? "is " : "are ", mesh_.world(),
              ": sums are rounded in another order, so that losses agree closely instead of bit for bit");
  if (leader() && manifest.world != mesh_.world() && config_.run.threads != default_threads())
    log::warn("run.threads: ", config_.run.threads, " in each process, as they were before; this layout would take ",
              default_threads(), ": set run.threads=", default_threads());
  const std::size_t replaced = ctx_.tuning ? adopt_choices(*ctx_.tuning, manifest.metadata) : 0;
  if (leader() && replaced > 0)
    log::warn(counted(static_cast<std::int64_t>(replaced), "measured choice"),
              " of run.tuning differed from the checkpoint's, which hold: the run goes on with the same bits");
  trainer_.restored();
  saver_.start_from(trainer_.steps_done());
  for (const CheckpointEntry& newer : list_checkpoints(dir_.checkpoints()))
    if (newer.step > trainer_.steps_done()) passed_over_.push_back(newer.step);
}

// The other run may go on and remove the checkpoint meanwhile: then all ranks take a newer one.
void Loop::load_initial_weights() {
  for (int look = 0; look < kMostLooks; ++look) {
    const FolderIdentity before = identity_of(start_.init_from);
    std::string problem;
    try {
      trainer_.load_weights(start_.init_from);
    } catch (const Error& e) {
      problem = e.what();
    }
    const bool gone = any_host(mesh_.host(), !before || identity_of(start_.init_from) != before);
    if (!gone && !problem.empty()) fail(problem);
    if (!gone) return agree_on_checkpoint(start_.init_from, mesh_);
    start_.init_from = find_initial_weights(start_, mesh_);
  }
  fail_outpaced(config_.run.init_from);
}

// Now that nothing can be refused any more.
void Loop::begin(const TrainOptions& options) {
  if (has_validation(start_.corpora))
    validation_.emplace(start_.corpora, loader_options(config_, mesh_),
                        config_.data.validation_batches * config_.train.batch_size);
  if (!leader()) return;
  if (options.fresh) remove_all_checkpoints(dir_.checkpoints());
  dir_.create(config_, *start_.corpora.stores.front()->tokenizer(), start_.replaced);
  failures_.emplace(dir_.failures_file(), options.fresh);
  clock_.failures(failures_->count());
  if (!validation_ && config_.train.eval_interval)
    log::warn(
        "the corpus has no validation split: there will be no validation loss. See `ringmaster data prepare --split`");
  describe();
  const bool resumed = !start_.checkpoint.empty();
  metrics_.emplace(dir_.path(), resumed ? std::optional(trainer_.steps_done()) : std::nullopt);
  if (!resumed) metrics_->text("config", to_yaml(config_));
  ProgressOptions view;
  view.log_interval = config_.train.log_interval;
  progress_.emplace(view);
  count_restart(options.restarts);
}

// What is lost is the time since the checkpoint, or since the launcher began or restarted the job.
void Loop::count_restart(int restarts) {
  WorkerPage& page = own_page();
  const std::int64_t now = milliseconds_of(std::chrono::system_clock::now());
  const std::int64_t before = std::max(page.since_ms.load(), saved_at(start_.checkpoint));
  if (restarts > 0 && before > 0) page.lost_ms += std::max<std::int64_t>(0, now - before);
  page.since_ms = now;
  page.begun = 1;
  if (restarts == 0) return;
  const double lost = static_cast<double>(page.lost_ms) / 1000;
  metrics_->record("restart", trainer_.steps_done(), {{"restarts", std::int64_t{restarts}}, {"seconds_lost", lost}});
  log::info("restart ", restarts, " of this job; restarts have cost ", lost, " s so far");
}

void Loop::describe() {
  log::info("run ", dir_.path(), ": ", format_count(static_cast<double>(trainer_.model().parameters().count())),
            " parameters, ",
            config_.train.steps
                ? counted(config_.train.steps, "step") + " of "
                : str(config_.train.minutes, config_.train.minutes == 1 ? " minute" : " minutes", " in steps of "),
            counted(config_.train.batch_size * config_.model.context, "token"), ", ", layout_text(), ", ",
            counted(config_.run.threads, "thread"), mesh_.world() > 1 ? " each" : "");
  log::info("memory: ", trainer_.lasting_memory());
  warn_of_vocabulary(config_, start_.corpora.vocab_size);
  warn_of_places(config_);
  for (const RowTable& rows : loader_.map().rows())
    log::info("packing: ", counted(rows.rows(), "sample"), " an epoch, ", static_cast<int>(100 * rows.filled() + 0.5),
              " % of their places hold a token, the others are padding");
  if (!start_.checkpoint.empty())
    log::info("resuming from step ", trainer_.steps_done(), " (", start_.checkpoint, ")");
  else if (!start_.init_from.empty())
    log::info("weights from ", start_.init_from);
}

ProgressState Loop::progress_state(const StepReport& r) const {
  ProgressState p;
  p.step = r.step;
  p.total_steps = config_.train.steps;
  p.loss = r.loss;
  p.val_loss = val_loss_;
  p.lr = r.lr;
  if (r.seconds > 0) {
    p.tokens_per_second = static_cast<double>(r.tokens) / r.seconds;
    p.step_ms = r.seconds * 1e3;
    p.eta_seconds = trainer_.seconds_left();
  }
  return p;
}

// The phase during which most memory was in use.
PhaseMemory fullest_phase(const MemoryStats& memory) {
  const auto most = std::max_element(memory.phases.begin(), memory.phases.end(),
                                     [](const PhaseMemory& a, const PhaseMemory& b) { return a.peak < b.peak; });
  return most == memory.phases.end() ? PhaseMemory{} : *most;
}

void Loop::report_plan() {
  if (plan_reported_ || !leader() || !trainer_.arena().planned()) return;
  plan_reported_ = true;
  const MemoryPlan plan = trainer_.arena().plan();
  const MemoryStats memory = ctx_.stream.allocator()->stats();
  log::info("memory: plan of ", bytes_text(plan.bytes), " for activations (live peak ", bytes_text(plan.live_peak),
            "), ", bytes_text(memory.reserved), " in all; ", bytes_text(memory.peak), " were in use during ",
            fullest_phase(memory).phase);
}

// "1 process", "4 processes on cuda (tp 2, cp 2 zigzag)".
std::string Loop::layout_text() const {
  const int world = mesh_.world();
  const std::string device(to_string(ctx_.stream.device().backend));
  if (world == 1) return "1 process on " + device;
  return str(world, " processes on ", device, " (", trainer_.plan().text(), ")");
}

// By this process since it started: keys and values, and their gradients, on their way to other ranks.
std::int64_t Loop::sent_keys() {
  const ContextParallel* exchange = trainer_.cp_batches().exchange();
  return exchange ? exchange->bytes_sent() : 0;
}

void Loop::report(const StepReport& r) {
  interval_seconds_ += r.seconds;
  interval_tokens_ += r.tokens;
  clock_.step(r.seconds, saver_.working());
  own_page().step = r.step;
  if (!leader()) return;
  progress_->update(progress_state(r));
  unrecorded_.push_back(r);
  if (unrecorded_.size() > kMostUnrecorded) unrecorded_.pop_front();
  if (r.step % config_.train.log_interval && r.step != config_.train.steps) return;
  const MemoryStats memory = ctx_.stream.allocator()->stats();
  metrics_->record("train", r.step,
                   {{"loss", r.loss},
                    {"grad_norm", r.norm},
                    {"lr", r.lr},
                    {"tokens", trainer_.tokens_seen()},
                    {"tokens_per_second", static_cast<double>(interval_tokens_) / interval_seconds_},
                    {"flops_per_second", flops_per_token_ * static_cast<double>(interval_tokens_) / interval_seconds_},
                    {"step_ms", r.seconds * 1e3},
                    {"data_ms", r.data_seconds * 1e3},
                    {"exchange_ms", r.exchange_seconds * 1e3},
                    {"context_bytes", sent_keys()},
                    {"memory_in_use", static_cast<std::int64_t>(memory.in_use)},
                    {"memory_peak", static_cast<std::int64_t>(memory.peak)},
                    {"memory_peak_phase", str(fullest_phase(memory).phase)},
                    {"memory_reserved", static_cast<std::int64_t>(memory.reserved)},
                    {"memory_fragmentation", memory.fragmentation()}});
  interval_seconds_ = 0;
  interval_tokens_ = 0;
  unrecorded_.clear();
}

// When the run diverges, each step since the last record is one, so that the way there shows.
void Loop::record_unrecorded() {
  if (!leader()) return;
  for (const StepReport& r : unrecorded_)
    metrics_->record("train", r.step,
                     {{"loss", r.loss}, {"grad_norm", r.norm}, {"lr", r.lr}, {"step_ms", r.seconds * 1e3}});
  unrecorded_.clear();
}

void Loop::validate() {
  if (!validation_ || validated_step_ == trainer_.steps_done()) return;
  validated_step_ = trainer_.steps_done();
  const Evaluation e =
      evaluate(trainer_.model(), ctx_, *validation_, mesh_.host(), &trainer_.cp_batches(), &mesh_.axis("tp"));
  val_loss_ = e.loss;
  if (!leader()) return;
  const double bits = e.bits_per_byte(validation_->bytes_per_token());
  metrics_->record("validation", trainer_.steps_done(),
                   {{"loss", e.loss}, {"perplexity", e.perplexity()}, {"bits_per_byte", bits}, {"tokens", e.tokens}});
  progress_->line(str("step ", trainer_.steps_done(), ": validation loss ", e.loss, ", perplexity ", e.perplexity(),
                      ", ", bits, " bits per byte over ", e.tokens, " tokens"));
}

// What the state is now. The file system may take its time while steps go on.
void Loop::save() {
  const std::int64_t step = trainer_.steps_done();
  if (saver_.has_begun(step)) return;
  trainer_.agree();  // a run that is resumed from here has these choices, so this one goes on with them, too
  if (leader() && ctx_.tuning) ctx_.tuning->save();
  mesh_.check();
  clock_.began(now());
  const Retention keep{narrow<int>(config_.checkpoint.keep_last), config_.checkpoint.keep_every, passed_over_};
  trainer_.keep_state_until(
      saver_.begin(state_, ctx_.stream, step, checkpoint_metadata(config_, ctx_.tuning.get()), keep));
}

// Before the process ends.
void Loop::save_last() {
  saver_.end(trainer_.steps_done());
  save();
  saver_.end_last(trainer_.steps_done());
}

std::string seconds_text(double seconds) { return str(std::round(seconds * 1000) / 1000, " s"); }

void Loop::report_save(const SaveOutcome& o) {
  if (o.saved()) clock_.ended(o.stall_seconds);
  if (o.saved()) std::erase(passed_over_, o.step);
  save_errors_ += !o.saved();
  if (!leader()) return;
  Metrics::Values values = {{"seconds", o.seconds},
                            {"stall_seconds", o.stall_seconds},
                            {"waited_seconds", o.waited_seconds},
                            {"bytes", static_cast<std::int64_t>(o.bytes)},
                            {"errors", save_errors_}};
  if (!o.saved()) values.push_back({"error", o.error});
  if (config_.checkpoint.automatic) values.push_back({"auto_seconds", clock_.between(trainer_.seconds())});
  metrics_->record("checkpoint", o.step, values);
  if (!o.saved())
    return log::error("step ", o.step, " was not saved (failure ", saver_.failures(), " in a row): ", o.error);
  log::info(
      "checkpoint of step ", o.step, ": ", bytes_text(o.bytes), " of this process saved in ", seconds_text(o.seconds),
      ", steps were held up for ", seconds_text(o.stall_seconds),
      o.waited_seconds > 0.001 ? str(", ", seconds_text(o.waited_seconds), " of it by the save before") : "",
      config_.checkpoint.automatic ? "; one comes every " + seconds_text(clock_.between(trainer_.seconds())) : "");
}

void Loop::report_watched() {
  finish_steps(0);
  if (last_.step)
    if (const std::string text = watcher_->report(ctx_); !text.empty()) progress_->line(text);
  watcher_ = nullptr;
}

// What the ranks do next is the same on all, whoever was told to stop, whose save takes longest, and by rank 0's clock.
bool Loop::step_now(TrainEnd& end) {
  if (config_.train.steps && trainer_.steps_done() >= config_.train.steps) return end = TrainEnd::finished, false;
  enum { told, out_of_time, saving, save_due, count };
  const double limit = config_.train.minutes * 60;
  std::array<double, count> votes{};
  votes[told] = signal_.requested();
  votes[out_of_time] = limit > 0 && trainer_.seconds() >= limit;
  votes[saving] = saver_.working();
  votes[save_due] = leader() && clock_.due(now(), trainer_.seconds());
  all_reduce_host(mesh_.host(), votes, Reduce::max);
  if (!votes[saving]) saver_.end(trainer_.steps_done());
  save_due_ = votes[save_due] > 0;
  if (votes[told]) return end = TrainEnd::interrupted, false;
  if (votes[out_of_time]) return end = TrainEnd::out_of_time, false;
  return true;
}

// After the step that was launched last. At the end of the run validation comes first: a kill must not lose it.
bool Loop::save_now(bool ends) const {
  const CheckpointConfig& c = config_.checkpoint;
  const std::int64_t step = trainer_.steps_done();
  return !ends && (save_due_ || saver_.retry_due(step) || (!c.automatic && c.interval && step % c.interval == 0));
}

// Reads the results of launched steps, until so many are left in flight.
void Loop::finish_steps(std::size_t left_in_flight) {
  while (trainer_.in_flight() > left_in_flight) {
    last_ = trainer_.finish();
    if (!last_.accepted) last_ = bad_steps_.compute_again(last_);
    if (!last_.accepted) {
      leave_out();
      continue;
    }
    report_plan();
    report(last_);
    if (leader() && ctx_.tuning) ctx_.tuning->save();  // before anything depends on it
  }
}

// Leaves out a step that was not accepted, also when it was computed again.
void Loop::leave_out() {
  if (trainer_.guard().judge(trainer_.steps_done() + 1) == OnBadStep::stop) {  // each step shows how it came to that
    unrecorded_.push_back(last_);
    unrecorded_.back().step = trainer_.steps_done() + 1;  // which did not count
    record_unrecorded();
  }
  saver_.end(trainer_.steps_done());
  const bool rolled_back = bad_steps_.leave_out(last_, saver_.saved_step() >= 0);
  if (rolled_back) {
    data_ = start_.data;
    unrecorded_.clear();
    validated_step_ = trainer_.steps_done();
    saver_.start_from(validated_step_);
    if (leader()) metrics_.emplace(dir_.path(), trainer_.steps_done());
  }
  if (!leader()) return;
  const BadStep& bad = trainer_.guard().bad_steps().back();
  metrics_->record("bad_step", bad.step,
                   {{"loss", bad.loss},
                    {"grad_norm", bad.norm},
                    {"first_sample", bad.first_sample},
                    {"last_sample", bad.end_sample - 1},
                    {"steps_back", bad.step - 1 - trainer_.steps_done()}});
}

TrainEnd Loop::run() {
  TrainEnd end = TrainEnd::finished;
  signal_.steps_begin();
  own_page().step = trainer_.steps_done();
  own_page().stepping = 1;
  while (step_now(end)) {
    if (watcher_) watcher_->before_launch(trainer_);
    trainer_.launch();
    if (watcher_ && watcher_->after_launch(trainer_)) report_watched();
    const std::int64_t step = trainer_.steps_done(), every = config_.train.eval_interval;
    const bool ends = step == config_.train.steps, validates = every && step % every == 0, saves = save_now(ends);
    finish_steps(validates || saves || ends ? 0 : trainer_.most_in_flight());
    if (trainer_.steps_done() != step) continue;  // it was left out
    if (validates) validate();
    if (saves) save();
  }
  finish_steps(0);
  if (watcher_) report_watched();
  if (end != TrainEnd::interrupted && last_.step) validate();
  save_last();
  if (failures_) failures_->ended_well();
  if (leader() && last_.step) progress_->finish(progress_state(last_));
  if (leader() && !last_.step && end == TrainEnd::finished)
    log::info("nothing left to do: step ", trainer_.steps_done(), " was the last");
  return end;
}

}  // namespace

TrainEnd train(Config config, const TrainOptions& options, Mesh& mesh, StopSignal& signal) {
  log::set_rank(mesh.rank(), mesh.world());
  return Loop(start_run(std::move(config), options, mesh), options, mesh, signal).run();
}

}  // namespace ring
