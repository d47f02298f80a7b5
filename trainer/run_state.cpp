#include "trainer/run_state.h"

#include <chrono>
#include <filesystem>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "comm/host.h"
#include "comm/leader.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/log.h"
#include "engine/agreement.h"
#include "engine/origin.h"
#include "job/run_phase.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

// Returns a file's time on the clock of now_ms(); 0 if it is in the future because the system clock was set back.
std::int64_t milliseconds_of(std::filesystem::file_time_type t) {
  const auto ago = std::chrono::floor<std::chrono::milliseconds>(std::filesystem::file_time_type::clock::now() - t);
  return ago.count() < 0 ? 0 : now_ms() - ago.count();
}

}  // namespace

RunState::RunState(RunContext& run)
    : run_(run),
      saver_(run.config.checkpoint, run.start.dir.checkpoints(), run.mesh, saver_parts(),
             [this](const SaveOutcome& o) { report_save(o); }) {}

// Completes state_, which checkpoints save, and returns the parts of the saver.
SaverParts RunState::saver_parts() {
  run_.trainer.add_state(state_);
  state_.add(kFingerprintName, &data_);
  Saving& saving = run_.start.saving;
  saving.keeps = saving.keeps && reserve_on_all_ranks(*run_.start.tier, state_, run_.ctx.stream, run_.mesh.host());
  return {saving, run_.start.token.get(), run_.start.tier.get()};
}

void RunState::load_initial_state(KeptState* kept) {
  enter(RunPhase::load);
  if (run_.start.from.from_survivors) {
    load_from_survivors(*kept);
  } else if (run_.start.from.resumes()) {
    load_checkpoint();
  } else if (!run_.start.from.init_from.empty()) {
    load_initial_weights();
  }
  saver_.reserve_snapshots(state_, run_.ctx.stream);
  data_ = run_.start.data;
}

// A lost island continues from the launcher's snapshot if that was chosen, else from the outer weights: after the
// latest exchange, or if islands have new numbers, at the step of the others, since samples are divided anew.
void RunState::load_from_survivors(KeptState& kept) {
  const KeptStates& all = *run_.start.from.survivors;
  const std::optional<std::int64_t> snapshot = run_.start.from.kept, newest = run_.start.newest_kept;
  const bool holds = all.holders[static_cast<std::size_t>(run_.mesh.rank())];
  // Rank 0 may have been lost before it had written new kernel choices.
  if (run_.ctx.tuning)
    run_.ctx.tuning->merge_record(gather_host(run_.mesh.host(), kept.choices())[static_cast<std::size_t>(all.donor)]);
  if (!snapshot)
    kept.load(all, state_, run_.ctx.stream, run_.mesh.host());
  else if (holds)
    kept.restore(state_, run_.ctx.stream, run_.mesh.coord("island"));
  else
    run_.start.tier->load(*snapshot, state_, run_.ctx.stream);
  if (!snapshot && !holds && all.islands > 0)
    run_.trainer.restart_island(all.renumbered ? std::nullopt : std::optional(all.exchange()));
  run_.trainer.on_state_loaded();
  IslandExchange exchange = all.exchange();
  if (all.renumbered) exchange.step = -1;  // its samples were divided in a different way
  if (all.islands > 0) run_.trainer.set_exchange(exchange);
  const bool saved = broadcast_from_rank0(run_.mesh.host(), [&] {
    const std::vector<CheckpointEntry> entries = list_checkpoints(run_.start.dir.checkpoints());
    return !entries.empty() && entries.back().step == all.step;
  });
  if (saved) saver_.start_from(all.step);
  if (newest) run_.start.tier->keep(*newest);
}

void RunState::load_checkpoint() {
  const std::optional<std::int64_t> kept = run_.start.from.kept;
  const Manifest manifest = kept ? run_.start.tier->load(*kept, state_, run_.ctx.stream)
                                 : load_state(run_.start.from.resumed.checkpoint, state_, run_.ctx.stream);
  if (run_.config.train.steps && manifest.step > run_.config.train.steps)
    fail("train.steps: the run has already done ", manifest.step, " steps, more than ", run_.config.train.steps,
         ". Set at least as many, or start over with --fresh");
  const bool leads = run_.leads(), other_world = leads && !kept && manifest.world != run_.mesh.world();
  if (other_world)
    log::warn("the checkpoint is from ", counted(manifest.world, "process"), ", but now there ",
              run_.mesh.world() == 1 ? "is " : "are ", run_.mesh.world(),
              ". Sums are rounded in a different order, so losses agree closely, but not bit for bit");
  if (other_world && run_.config.run.threads != default_threads())
    log::warn("run.threads: ", run_.config.run.threads, " per process, as before, but this layout's default is ",
              default_threads(), ". To use it, set run.threads=", default_threads());
  const std::size_t replaced = run_.ctx.tuning ? adopt_kernel_choices(*run_.ctx.tuning, manifest.metadata) : 0;
  if (leads && replaced > 0)
    log::warn(
        counted(static_cast<std::int64_t>(replaced), "measured choice"),
        " in tuning.yaml differed from the checkpoint's. The checkpoint's apply, so the run continues bit-identically");
  run_.trainer.on_state_loaded();
  if (!kept) saver_.start_from(run_.trainer.steps_done());
  for (const CheckpointEntry& newer : list_checkpoints(run_.start.dir.checkpoints()))
    if (newer.step > run_.trainer.steps_done()) damaged_steps_.push_back(newer.step);
}

// Loads weights from another run's checkpoint. If the other run still trains and removes the checkpoint meanwhile, all
// ranks load a newer one.
void RunState::load_initial_weights() {
  std::string& weights = run_.start.from.init_from;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const FolderIdentity before = identity_of(weights);
    std::string problem;
    try {
      run_.trainer.load_weights(weights);
    } catch (const Error& e) {
      problem = e.what();
    }
    const bool gone = any_host(run_.mesh.host(), !before || identity_of(weights) != before);
    if (!gone && !problem.empty()) fail(problem);
    if (!gone) return agree_on_checkpoint(weights, run_.mesh);
    weights = find_initial_weights(run_.start, run_.mesh);
  }
  fail_outpaced(run_.config.run.init_from);
}

std::int64_t RunState::loaded_state_time_ms() const {
  if (run_.start.from.kept) return milliseconds_of(run_.start.tier->loaded_from());
  std::error_code error;
  const auto time = std::filesystem::last_write_time(run_.start.from.resumed.checkpoint + "/" + kManifestName, error);
  return error ? 0 : milliseconds_of(time);
}

void RunState::begin_run(bool fresh) {
  failures_.emplace(run_.start.dir.failures_file(), fresh);
  clock_.failures(failures_->count());
}

bool RunState::should_save_to_agent() const {
  if (!run_.start.saving.keeps) return false;
  const std::int64_t step = run_.trainer.steps_done();
  return run_.trainer.islands_combine_after(step) || step % run_.config.checkpoint.memory_interval == 0;
}

bool RunState::should_save(bool due_or_asked) const {
  const CheckpointConfig& c = run_.config.checkpoint;
  const std::int64_t step = run_.trainer.steps_done();
  return due_or_asked || saver_.retry_due(step) || (!c.automatic && c.interval && step % c.interval == 0);
}

// Makes all ranks use the same kernel choices. A run resumed from this state uses these choices, so this run must use
// them from here on, too.
void RunState::prepare_save() {
  enter(RunPhase::snapshot);
  run_.trainer.agree_on_kernel_choices();
  run_.trainer.prepare_save();
  save_choices();
  run_.mesh.check();
}

std::string RunState::metadata() const {
  return checkpoint_metadata(run_.start.config, run_.start.memory, run_.ctx.tuning.get());
}

// Saves the current state. Training continues while the files are written.
void RunState::save() {
  const std::int64_t step = run_.trainer.steps_done();
  if (saver_.has_begun(step)) return;
  prepare_save();
  asked_ms_ = now_ms();
  clock_.began(seconds_now());
  const Retention keep{narrow<int>(run_.config.checkpoint.keep_last), run_.config.checkpoint.keep_every,
                       damaged_steps_};
  run_.trainer.keep_state_until(saver_.begin_save(state_, run_.ctx.stream, step, metadata(), keep));
}

void RunState::save_to_agent() {
  prepare_save();
  const std::int64_t step = run_.trainer.steps_done(), asked = now_ms();
  const AgentSaveOutcome o = saver_.save_to_agent(state_, run_.ctx.stream, step, metadata());
  run_.trainer.keep_state_until(o.copied);
  run_.time.save_seconds += o.stall_seconds;
  run_.time.on_save(step, asked, o.stall_seconds);
  if (run_.log) run_.log->log_agent_save(step, o);
}

void RunState::save_last() {
  end_save();
  save();
  saver_.end_last_save(run_.trainer.steps_done());
  run_.check_directory();
  if (failures_) failures_->on_clean_end();
}

void RunState::report_save(const SaveOutcome& o) {
  run_.time.save_seconds += o.stall_seconds;
  run_.time.failed_saves += !o.saved();
  if (o.saved()) {
    run_.time.on_save(o.step, asked_ms_, o.stall_seconds);
    clock_.on_save_end(o.stall_seconds);
    std::erase(damaged_steps_, o.step);
  }
  if (!run_.log) return;
  const std::optional<double> seconds_between =
      run_.config.checkpoint.automatic ? std::optional(clock_.save_interval(run_.trainer.seconds())) : std::nullopt;
  run_.log->log_save(o, saver_.failures(), seconds_between);
}

void RunState::on_rollback() {
  data_ = run_.start.data;
  saver_.start_from(run_.trainer.steps_done());
  saver_.discard_launcher_snapshots();
  run_.time.on_rollback(run_.trainer.steps_done());
  run_.check_directory();
}

void RunState::save_choices() {
  if (!run_.leads() || !run_.ctx.tuning || !run_.ctx.tuning->is_changed()) return;
  run_.check_directory();
  run_.ctx.tuning->save_if_changed();
}

}  // namespace ring
