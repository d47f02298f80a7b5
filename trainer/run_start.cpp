#include "trainer/run_start.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <utility>

#include "checkpoint/reader.h"
#include "comm/leader.h"
#include "core/checked.h"
#include "core/counted.h"
#include "core/fields.h"
#include "core/joined.h"
#include "core/log.h"
#include "core/utf8_text.h"
#include "data/token_store.h"
#include "engine/agreement.h"
#include "engine/memory_check.h"
#include "engine/origin.h"
#include "engine/planner.h"
#include "engine/rates.h"
#include "evaluate/session.h"
#include "generated/build_info.h"
#include "job/environment.h"
#include "job/worker_status.h"
#include "model/architectures.h"
#include "model/training_state.h"
#include "trainer/records.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

std::string listed(const std::vector<std::string>& changes) {
  std::string list;
  for (const std::string& change : changes) list += "\n  " + change;
  return list;
}

bool changes_one_of(const std::string& change, std::initializer_list<const char*> keys) {
  return std::ranges::any_of(keys, [&](const char* key) { return change.starts_with(key); });
}

// Returns true if a change splits the same attention weights into different heads, which makes them meaningless.
bool changes_heads(const std::string& change) {
  return changes_one_of(change, {"model.heads:", "model.kv_heads:", "model.head_dim:"});
}

// Throws Error if the initial weights contain adapters that this run would drop or change.
void check_adapters(const Origin& origin, const ModelConfig& now) {
  LoraConfig trained = origin.config.model.resolved().lora, wanted = now.lora;
  trained.dropout = wanted.dropout;
  if (trained.rank == 0 || trained == wanted) return;
  fail("run.init_from: the weights in ", origin.checkpoint, " have adapters of rank ", trained.rank, " and alpha ",
       trained.alpha, " (model.lora), but this run has ",
       wanted.rank ? str("different ones, of rank ", wanted.rank, " and alpha ", wanted.alpha) : "none",
       ". Use that run's model.lora, or merge its adapters first: ringmaster export RUN --merge --output FOLDER, then ",
       "ringmaster import FOLDER");
}

// Compares the model with the model in which the initial weights were trained. Throws Error if the heads differ. Warns
// about other settings that keep the shapes of weights but change what the weights compute.
void check_meaning_of_weights(const Origin& origin, Config now) {
  Config trained = origin.config;
  trained.model = trained.model.resolved();
  now.model = now.model.resolved();
  check_adapters(origin, now.model);
  std::vector<std::string> changes = diff_configs(trained, now);
  std::erase_if(changes, [](const std::string& change) {
    return !changes_heads(change) &&
           !changes_one_of(change, {"model.norm:", "model.norm_eps:", "model.norm_place:", "model.norm_zero_centered:",
                                    "model.gated_delta_net.norm_eps:", "model.mlp:", "model.positions:", "model.rope.",
                                    "model.rope_layers", "model.attention_scale:", "model.attention_soft_cap:",
                                    "model.embedding_scale:", "model.logit_soft_cap:"});
  });
  if (changes.empty()) return;
  const std::string there = str("the weights in ", origin.checkpoint, " were trained with other settings:");
  if (std::ranges::any_of(changes, changes_heads))
    fail("run.init_from: ", there, listed(changes), "\nUse that run's model settings");
  log::warn(there, listed(changes),
            "\nThe model computes something else with them until training has adapted the weights");
}

// Returns the path of the checkpoint that run.init_from names; empty if it is not set.
std::string initial_weights(const ResolvedRun& s) {
  if (s.config.run.init_from.empty()) return "";
  const FoundCheckpoint found = find_checkpoint(s.config.run.init_from);
  const Origin origin = origin_of(found);
  const std::optional<RunDirectory> run = run_containing(found.path.string());
  check_tokenizer(s.corpora, origin.tokenizer_hash(), "run " + (run ? run->path() : found.path.string()));
  check_meaning_of_weights(origin, s.config);
  return found.path.string();
}

// Returns true if the settings are those of config.yaml and that file says that a user allowed them to replace the
// checkpoint's settings.
bool allowed_before(const ResolvedRun& s, const Origin& origin, const RunSettings& file) {
  return may_replace_settings(file, origin) && changes_of_results(file.config, s.config).empty();
}

void warn_once(Resumption& r, const std::string& warning) {
  if (r.warnings.insert(warning).second) log::warn(warning);
}

// Warns about keys in an edited or damaged config.yaml that differ from the checkpoint but may be changed freely. A key
// that was given for this start is intended, so it causes no warning.
void warn_of_edits(Resumption& r, const ResolvedRun& s, const Origin& origin, const RunSettings& file) {
  if (file.untouched || !changes_of_results(file.config, s.config).empty()) return;
  const std::vector<std::string> where = {"run.name", "run.directory"};
  std::vector<std::string> edits = diff_configs(origin.config, file.config, where);
  const std::vector<std::string> given = diff_configs<Config>(file.config, s.config, where);
  std::erase_if(edits, [&](const std::string& edit) {
    const std::string key = edit.substr(0, edit.find(':') + 1);
    return std::ranges::any_of(given, [&](const std::string& g) { return g.starts_with(key); });
  });
  if (!edits.empty())
    warn_once(r, str(s.dir.config_file(),
                     " was changed after the run wrote it. It differs from the checkpoint in:", listed(edits)));
}

// Returns advice for users who did not repeat the sizes that --fit or auto chose when the run began.
std::string advice_on_sizes(const ResolvedRun& s, const Origin& origin) {
  const TrainConfig &old = origin.config.train, &now = s.config.train;
  if (now.micro_batch == 0 && old.micro_batch > 0)
    return str("To resume with the run's train.micro_batch: ", old.micro_batch,
               ", which may have been chosen automatically, pass --fit or train.micro_batch=auto. ");
  if (now.mlp_chunk == 0 && old.mlp_chunk > 0)
    return str("To resume with the run's train.mlp_chunk: ", old.mlp_chunk,
               ", which may have been chosen automatically, pass train.mlp_chunk=auto. ");
  return "";
}

// Returns the shape of each parameter by name, except parameters that belong to particular attention kinds: a
// checkpoint that is resumed may lack those.
std::map<std::string, Shape> shapes_of(ModelConfig model) {
  model.attention = {};
  model.attention_layers.clear();
  const std::unique_ptr<Model> decoder = make_model(model);
  std::map<std::string, Shape> shapes;
  for (const Param* p : decoder->parameters().declared())
    for (const LogicalParam& part : p->parts) shapes[part.name] = part.whole;
  return shapes;
}

// Returns the key that determines the run's directory, for advice on how to start a new run.
const char* key_of_place(const Config& c) { return c.run.directory.empty() ? "run.name" : "run.directory"; }

// Returns the command that trains the run with its own settings, with as many processes as now.
std::string resume_command(const RunDirectory& run) {
  return start_command(parse_environment(current_environment()), "train " + run.path());
}

// Throws Error if the model's settings change the shapes of the checkpoint's tensors, or how their values are split
// into heads. No option can allow this.
void check_shapes(const ResolvedRun& s, const Origin& origin, const std::vector<std::string>& changes) {
  std::vector<std::string> of_model = changes;
  std::erase_if(of_model, [](const std::string& change) { return !change.starts_with("model."); });
  if (of_model.empty()) return;
  const bool same_shapes = shapes_of(origin.config.model) == shapes_of(s.config.model);
  if (same_shapes && std::ranges::none_of(of_model, changes_heads)) return;
  fail(s.dir.path(), ": the tensors of the checkpoint ", origin.checkpoint, " do not have the ",
       same_shapes ? "heads" : "shapes", " of this model:", listed(of_model), "\nResume with the old settings (",
       resume_command(s.dir), "), or train the new model in a new run: ", key_of_place(s.config), "=NAME");
}

// Throws Error, which names the keys, if settings differ from those that the checkpoint was trained with.
void check_settings(Resumption& r, const ResolvedRun& s, const Origin& origin, const RunSettings* file,
                    bool allow_changes) {
  if (const auto rounding = changes_of_rounding(origin.config, s.config); !rounding.empty())
    warn_once(r,
              str("resuming with ", joined(rounding, ", "),
                  s.config.parallel.cp_messages == ContextMessages::fp8
                      ? ". Different keys are rounded (parallel.cp_messages), and sums are rounded in a different order"
                      : ". Sums are rounded in a different order",
                  ", so losses agree closely, but not bit for bit"));
  if (file) r.replaced = file->replaced;
  if (file) warn_of_edits(r, s, origin, *file);
  const std::vector<std::string> changes = changes_of_results(origin.config, s.config);
  if (changes.empty()) return;
  check_shapes(s, origin, changes);
  if (allow_changes || (file && allowed_before(s, origin, *file))) {
    const std::unique_ptr<Model> model = make_model(s.config.model);
    for (const TrainingState* state : model->training_states()) state->check_resume(origin.config.model, s.dir.path());
    warn_once(r, str("resuming ", s.dir.path(), " with changed settings:", listed(changes)));
    r.changed = true;
    if (std::ranges::count(r.replaced, origin.config_hash) == 0) r.replaced.push_back(origin.config_hash);
    return;
  }
  if (file && changes_of_results(file->config, s.config).empty())
    fail(s.dir.config_file(), " differs from the settings in the checkpoint ", origin.checkpoint, ":", listed(changes),
         "\nRestore the file (", s.dir.restoring_command(origin.checkpoint),
         "), pass --allow-changes to use the changed settings, pass --fresh to start over, or set a different ",
         key_of_place(s.config));
  fail(s.dir.path(), ": the run was trained with different settings:", listed(changes), "\n",
       advice_on_sizes(s, origin), "Resume with the old ones (", resume_command(s.dir),
       "), pass --allow-changes to use the new ones, pass --fresh to start over, or set a different ",
       key_of_place(s.config));
}

// Warns if the run's tokenizer file does not match the checkpoint. The file is rewritten from the corpus when the run
// resumes.
void warn_of_tokenizer(Resumption& r, const ResolvedRun& s, const Origin& origin) {
  try {
    load_tokenizer_of(origin, s.dir.tokenizer_file());
  } catch (const Error& e) {
    warn_once(r, str(e.what(), ", which happens now"));
  }
}

// A run with a checkpoint does not read run.init_from again. Throws Error if the setting names a different source.
void check_source(const ResolvedRun& s, const Origin& origin) {
  const std::string &before = origin.config.run.init_from, &now = s.config.run.init_from;
  if (now.empty() || now == before) return;
  fail("run.init_from: ", now, " has no effect, because ", s.dir.path(), " started from ",
       before.empty() ? "random weights" : before, ". To start from it, set a different ", key_of_place(s.config));
}

// before: result of an earlier check, whose warnings are not repeated.
Resumption check_resumption(const ResolvedRun& s, const Origin& origin, const TrainOptions& options,
                            const Resumption& before = {}) {
  refuse_imported(s.dir, origin);
  check_source(s, origin);
  std::optional<RunSettings> file;
  if (s.dir.has_config())
    file = s.dir.settings();
  else
    log::warn(s.dir.path(), " has checkpoints but no config.yaml. The settings are compared with those in ",
              origin.checkpoint);
  Resumption r{.checkpoint = origin.checkpoint, .warnings = before.warnings};
  check_settings(r, s, origin, file ? &*file : nullptr, options.allow_changes);
  check_tokenizer(s.corpora, origin.tokenizer_hash(), "run " + s.dir.path());
  if (!options.allow_changes)
    check_data(origin, s.corpora,
               str("Restore the old data, pass --allow-changes, or set a different ", key_of_place(s.config)));
  else if (const auto changes = changes_of_data(origin, s.data, s.config.model); !changes.empty())
    warn_once(r, str("resuming ", s.dir.path(), " with different data:", listed(changes))), r.changed = true;
  warn_of_tokenizer(r, s, origin);
  return r;
}

void refuse_to_delete(const std::string& weights, const RunDirectory& dir) {
  const auto source = weights.empty() ? std::nullopt : run_containing(weights);
  std::error_code error;
  if (source && fs::equivalent(source->path(), dir.path(), error))
    fail("--fresh would delete the weights that run.init_from reads from ", weights,
         ". Set a different run.name (or run.directory, if it is set)");
}

// Finds the run. A missing directory is created later, once no check can refuse the run any more.
LocatedRun locate_run(ResolvedRun resolved, const TrainOptions& options, Mesh& mesh) {
  LocatedRun run{std::move(resolved)};
  const std::string memory = broadcast_from_rank0(mesh.host(), [&] {
    std::error_code error;
    if (fs::exists(run.dir.path(), error)) run.lock = run.dir.lock();
    if (options.fresh) return std::string();
    const std::optional<Origin> origin = newest_origin(run.dir);
    if (origin) run.newest = check_resumption(run, *origin, options);
    const std::optional<MemoryRecord> recorded = recall_memory(run.dir, origin ? origin->memory : "");
    return recorded ? to_json(*recorded) : "";
  });
  if (!memory.empty()) run.recorded = parse_memory_record(memory);
  return run;
}

// Returns the record with the smaller sizes chosen after memory ran out, if settings and memory are still the same;
// otherwise a new record.
MemoryRecord repeat_memory(const LocatedRun& run, Mesh& mesh) {
  const MemoryRecord now = memory_record_of(run.config, mesh);
  if (!run.recorded || run.recorded->ran_out == 0) return now;
  const MemoryRecord& old = *run.recorded;
  const BatchSize steps = batch_size(run.config);
  const auto divides = [&](std::int64_t sequences) {
    return sequences / (mesh.degree("island") * mesh.degree("dp")) % old.micro_batch == 0;
  };
  std::string changes = changes_since(old, now);
  if (changes.empty() && !(divides(steps.sequences) && std::ranges::all_of(steps.others, divides)))
    changes = str("micro_batch ", old.micro_batch, " does not divide all batch sizes");
  if (mesh.rank() == 0 && !changes.empty())
    log::warn("memory ran out before (", old.why, "), but the smaller sizes chosen then no longer apply: ", changes);
  else if (mesh.rank() == 0)
    log::info("memory ran out before, so the run keeps the smaller sizes chosen then (", run.dir.memory_file(),
              " has details): ", old.reductions_text());
  return changes.empty() ? old : now;
}

// Opens the launcher's store of snapshots; null if it keeps none. A snapshot is valid only for the same settings, data,
// program and layout.
std::unique_ptr<MemoryTier> open_tier(const ResolvedRun& run, Mesh& mesh) {
  if (run.config.checkpoint.memory_interval == 0) return nullptr;
  auto tier =
      open_memory_tier({to_yaml(run.config), run.data, build_info::kCommit, str(mesh.rank(), " of ", mesh.world())});
  if (!tier && mesh.rank() == 0)
    log::warn("checkpoint.memory_interval: has no effect without `ringmaster launch`, which keeps the state in memory");
  return tier;
}

FittedRun fit_run(LocatedRun located, const TrainOptions& options, Mesh& mesh) {
  const MemoryRecord memory = repeat_memory(located, mesh);
  ResolvedConfig steps = located.config;
  if (memory.ran_out > 0) steps.train.micro_batch = memory.micro_batch;
  FittedRun run{std::move(located), memory, std::move(steps)};
  run.tier = open_tier(run, mesh);
  run.saving = check_memory(run.config, mesh, run.tier.get());
  // Survivors of a replacement need memory for a second copy of the state only for now.
  if (run.tier && !run.saving.keeps && !any_host(mesh.host(), options.kept && options.kept->holds())) run.tier->clear();
  if (run.saving.keeps && !options.fresh) run.newest_kept = newest_common_step(run.tier.get(), mesh.host());
  run.loader = std::make_unique<Loader>(run.corpora, loader_options(run.step_config, mesh));
  own_status().start.mark_reached(StartStage::planned);
  return run;
}

// Acquires the writer token of the run's directory. From here on no other process can commit a checkpoint there, so
// later code sees every checkpoint that other processes will ever write.
std::unique_ptr<WriterToken> acquire_token(FittedRun& run) {
  if (!run.lock) run.lock = run.dir.lock();
  auto token = std::make_unique<WriterToken>(run.dir.path());
  remove_stale_entries(run.dir.checkpoints());
  return token;
}

// Returns the last step that a process recorded here; 0 if there is none or the file cannot be read.
std::int64_t last_recorded_step(const RunDirectory& dir) try {
  std::int64_t step = 0;
  read_records(dir.metrics_file(), [&](const Record& r) { step = std::max(step, r.step); });
  return step;
} catch (const Error&) {
  return 0;
}

void warn_of_lost_steps(const ResolvedRun& s) {
  const std::int64_t steps = last_recorded_step(s.dir);
  if (steps == 0) return;
  const CheckpointConfig& c = s.config.checkpoint;
  log::warn(s.dir.path(), " has records of ", counted(steps, "step"),
            " but no checkpoint to resume from, so it starts over. ",
            c.automatic ? str("checkpoint.auto first saves after 10 s. To save earlier, set checkpoint.auto: false and "
                              "checkpoint.interval")
                        : str("To lose fewer steps next time, set checkpoint.interval (now ", c.interval,
                              ") or checkpoint.minutes"));
}

// Throws Error if the directory is gone after a launcher restarted the job: the run would silently start over.
void refuse_to_lose_the_run(const ResolvedRun& s, const TrainOptions& options) {
  const bool begun = options.restarts > 0 && own_status().begun != 0;
  if (begun && !s.dir.exists())
    fail(s.dir.path(),
         " was removed or moved since this job began, and the launcher keeps no copy of the state "
         "(checkpoint.memory_interval). Move the directory back, or start the job again to start over");
}

// Returns the step of the launcher's snapshot from which the islands that lost a process can repeat their steps alone,
// or nullopt if no snapshot is usable. A snapshot is unusable if weights have been exchanged since it was taken.
std::optional<std::int64_t> snapshot_for_islands(const KeptStates& kept, const FittedRun& run) {
  const std::optional<std::int64_t> step = run.newest_kept;
  if (kept.islands == 0 || kept.all_hold() || kept.renumbered || !step) return std::nullopt;
  return *step >= kept.exchange().combined && *step <= kept.step ? step : std::nullopt;
}

// Returns true if the run may continue from the states that surviving processes kept. If rank 0 may not have recorded
// that step, a survivor must have the report of the step. With islands, a lost island must have a state to start from;
// if the launcher keeps snapshots, the result must be bit-identical.
bool may_use(const KeptStates& kept, const FittedRun& run) {
  if (kept.islands > 0 && (kept.all_hold() || kept.renumbered)) return true;
  const IslandExchange& exchange = kept.exchange();
  if (kept.islands > 0)
    return snapshot_for_islands(kept, run) || (exchange.step >= 0 && (exchange.combined == 0 || !run.saving.keeps));
  return kept.recorded || kept.last.step == kept.step || !logs_step(run.config.train, kept.step);
}

// Selects the launcher's snapshot if no checkpoint is newer. Otherwise selects the newest checkpoint that passes a full
// verification; if there is none, initial weights.
StartingState select_starting_state(const FittedRun& run, const TrainOptions& options) {
  const std::vector<CheckpointEntry> all = list_checkpoints(run.dir.checkpoints());
  if (run.newest_kept && (all.empty() || all.back().step <= *run.newest_kept)) {
    if (!run.lock)
      log::warn(
          run.dir.path(),
          " was removed or moved since this job began. It is created again for the state that the launcher keeps");
    return {.kept = run.newest_kept, .resumed = run.newest};
  }
  refuse_to_lose_the_run(run, options);
  const auto found = options.fresh ? std::nullopt : find_newest_verified(run.dir.checkpoints());
  if (found && found->path.string() == run.newest.checkpoint) return {.resumed = run.newest};
  if (found) return {.resumed = check_resumption(run, origin_of(*found), options, run.newest)};
  // Initial weights are looked up only if there is no checkpoint: a run with a checkpoint may have lost their source.
  run.dir.check_replaceable();
  StartingState from{.init_from = initial_weights(run)};
  if (options.fresh) refuse_to_delete(from.init_from, run.dir);
  return from;
}

// Takes over the run's directory, or creates it if it does not exist.
RunStart claim_run(FittedRun run, const TrainOptions& options, Mesh& mesh) {
  std::unique_ptr<WriterToken> token;
  StartingState from;
  std::optional<KeptStates> survivors;
  const int islands = run.config.parallel.local_steps > 0 ? mesh.degree("island") : 0;
  if (options.restarts > 0 && options.kept) survivors = options.kept->compare(mesh.host(), islands);
  const auto claim = [&] {
    if (run.lock) token = acquire_token(run);
    if (survivors && run.lock && may_use(*survivors, run))
      from = {.from_survivors = true, .kept = snapshot_for_islands(*survivors, run), .resumed = run.newest};
    else
      from = select_starting_state(run, options);
    if (!token) token = acquire_token(run);
    log::open_file(run.dir.log_file());
    if (!from.resumes() && !options.fresh) warn_of_lost_steps(run);
    return from.resumed.checkpoint;
  };
  from.resumed.checkpoint = broadcast_from_rank0(mesh.host(), claim);
  own_status().start.mark_reached(StartStage::chosen);
  from.from_survivors = broadcast_from_rank0(mesh.host(), [&] { return from.from_survivors; });
  from.survivors = std::move(survivors);
  from.kept = broadcast_from_rank0(mesh.host(), [&] { return from.kept; });
  from.init_from = broadcast_from_rank0(mesh.host(), [&] { return from.init_from; });
  run.memory.token = broadcast_from_rank0(mesh.host(), [&] { return token->number(); });
  // The new token makes the memory notes of earlier processes invalid, so this process records their choice again.
  if (mesh.rank() == 0 && run.memory.ran_out > 0) write_memory(run.dir, run.memory);
  if (!from.resumed.checkpoint.empty()) agree_on_checkpoint(from.resumed.checkpoint, mesh);
  return {std::move(run), std::move(token), std::move(from)};
}

// Returns true for --fit, which means train.micro_batch: auto. A resumed run's settings contain the chosen value.
bool chooses_micro_batch(const Config& c, const TrainOptions& options, Mesh& mesh) {
  if (c.train.micro_batch == kAutoMicroBatch) return true;
  if (!options.fit || c.train.micro_batch == 0) return options.fit;
  broadcast_from_rank0(mesh.host(), [&] {
    const auto previous = settings_of_resumed(c, options.fresh);
    if (!previous || previous->train.micro_batch != c.train.micro_batch)
      fail("--fit chooses train.micro_batch, but the settings contain train.micro_batch: ", c.train.micro_batch,
           ". Remove it from them, or pass train.micro_batch=auto on the command line instead of --fit");
    return true;
  });
  return false;
}

// Returns true if there is a layout with these sizes in place of those that are auto.
bool have_layout(Config c, const StepSizes& sizes, int world) try {
  if (c.train.micro_batch == kAutoMicroBatch) c.train.micro_batch = sizes.micro_batch;
  if (c.train.sequence_chunk == kAutoSequenceChunk) c.train.sequence_chunk = sizes.sequence_chunk;
  plan_of(c, world);
  return true;
} catch (const Error&) {
  return false;
}

// For a resumed run, returns the sizes that it has used so far, if the layout allows them; otherwise sizes that fit.
StepSizes fitting_sizes(const Config& resolved, const TrainOptions& options, std::size_t budget, int world) {
  if (const auto previous = settings_of_resumed(resolved, options.fresh)) {
    const StepSizes used{previous->train.micro_batch, previous->train.mlp_chunk, previous->train.sequence_chunk};
    if (have_layout(resolved, used, world)) return used;
  }
  return fit_step_sizes({resolved, world, budget, rates_named("", resolved)});
}

std::string tokens_text(std::int64_t tokens) { return tokens ? counted(tokens, "token") : "0, all at once"; }

// Replaces train.micro_batch, .mlp_chunk and .sequence_chunk, if they are auto, by values that fit.
ResolvedConfig choose_sizes(ResolvedConfig c, const TrainOptions& options, Mesh& mesh) {
  const bool rows = c.train.micro_batch == kAutoMicroBatch, chunk = c.train.mlp_chunk == kAutoMlpChunk,
             parts = c.train.sequence_chunk == kAutoSequenceChunk;
  if (!rows && !chunk && !parts) return c;
  Config asked = c;
  const std::size_t host = min_over_ranks(activation_room(c, mesh), mesh);
  if (c.train.activation_offload == Switch::automatic)
    asked.train.activation_offload_bytes = narrow<std::int64_t>(host);
  const std::size_t budget = memory_budget(c, mesh);
  const StepSizes sizes =
      broadcast_from_rank0(mesh.host(), [&] { return fitting_sizes(asked, options, budget, mesh.world()); });
  if (rows || (parts && c.train.micro_batch == 0)) c.train.micro_batch = sizes.micro_batch;
  if (chunk) c.train.mlp_chunk = sizes.mlp_chunk;
  if (parts) c.train.sequence_chunk = sizes.sequence_chunk;
  if (rows && mesh.rank() == 0) log::info("train.micro_batch: auto is ", sizes.micro_batch);
  if (chunk && mesh.rank() == 0) log::info("train.mlp_chunk: auto is ", tokens_text(sizes.mlp_chunk));
  if (parts && mesh.rank() == 0) log::info("train.sequence_chunk: auto is ", tokens_text(sizes.sequence_chunk));
  check_sizes(c, mesh.world());
  return c;
}

// Reads the tasks on all ranks. Throws Error if the ranks read different tasks.
std::vector<Task> agreed_tasks(const Config& c, const TokenStore& store, Mesh& mesh) {
  if (c.train.eval_tasks.empty()) return {};
  std::vector<Task> tasks =
      read_tasks("train.eval_tasks", c.train.eval_tasks, *store.tokenizer(), c.model.context, mesh.rank() == 0);
  Facts facts;
  for (const Task& task : tasks) facts.push_back({task.name, str("hash ", task.hash)});
  if (mesh.world() > 1)
    mesh.check_agreement({"tasks", "the ranks read different tasks", "Put the same files on every machine"}, facts);
  return tasks;
}

void warn_of_unused_intervals(const CheckpointConfig& c) {
  if (c.automatic && (c.interval != CheckpointConfig{}.interval || c.minutes > 0))
    log::warn(
        "checkpoint.interval and checkpoint.minutes have no effect with checkpoint.auto: true. Set auto: false to "
        "use them");
}

// Warns about a small final rate: other programs expect an absolute rate (nanoGPT's min_lr), so a fraction as small as
// a rate is probably one.
void warn_of_final_rate(const Config& c) {
  const double last = c.schedule.final_lr, rate = c.optimizer.lr;
  const bool used = c.schedule.kind != ScheduleKind::constant && last != ScheduleConfig{}.final_lr;
  if (!used || last <= 0 || last > rate) return;
  log::warn("schedule.final_lr: ", last, " is a fraction of optimizer.lr: ", rate, ", so the learning rate falls to ",
            last * rate, ". If it should fall to ", last, ", set schedule.final_lr=", last / rate);
}

void warn_of_warmup(const Config& c) {
  const std::int64_t warmup = c.schedule.warmup_steps, steps = c.train.steps;
  if (steps == 0 || warmup <= steps) return;
  log::warn("schedule.warmup_steps: ", warmup, warmup == ScheduleConfig{}.warmup_steps ? ", the default," : "",
            " is more than train.steps: ", steps, ", so the learning rate rises to only ", steps, "/", warmup,
            " of optimizer.lr. Shorten the warm-up, for example to a twentieth of the run: schedule.warmup_steps=",
            std::max<std::int64_t>(1, steps / 20));
}

void warn_of_decay(const Config& c) {
  const std::int64_t decay = c.schedule.decay_steps, steps = c.train.steps;
  if (steps == 0 || decay == 0 || c.schedule.warmup_steps + decay <= steps) return;
  log::warn("schedule.decay_steps: ", decay, " does not fit into train.steps: ", steps, " after ",
            counted(c.schedule.warmup_steps, "step"),
            " of warm-up, so the decay is shorter and its steps are steeper. ",
            "Leave schedule.decay_steps out to decay over the last fifth of the run");
}

ResolvedRun resolve_run(Config given, const TrainOptions& options, Mesh& mesh) {
  Corpora corpora = open_agreed_corpora(given, mesh);
  const double epochs = given.train.epochs;
  check_pairs(given.preference, corpora);
  resolve_length(given, corpora);
  if (epochs > 0 && mesh.rank() == 0) log::info("train.epochs: ", epochs, " equals train.steps: ", given.train.steps);
  if (chooses_micro_batch(given, options, mesh)) given.train.micro_batch = kAutoMicroBatch;
  ResolvedConfig c = choose_sizes(resolve_config(std::move(given), corpora.vocab_size, mesh), options, mesh);
  if (mesh.rank() == 0)
    warn_of_warmup(c), warn_of_decay(c), warn_of_final_rate(c), warn_of_unused_intervals(c.checkpoint);
  // Throws Error if the GPU is missing.
  if (c.run.device == DeviceChoice::cuda) Stream::create({Backend::cuda, mesh.device().index});
  std::vector<Task> tasks = agreed_tasks(c, *corpora.stores.front(), mesh);
  std::string data = data_fingerprint(corpora, c.model);
  const RunDirectory dir(c.run.path());
  return {std::move(corpora), std::move(c), dir, std::move(tasks), std::move(data)};
}

}  // namespace

EvaluationsDue evaluations_due(const ResolvedRun& run, std::int64_t step) {
  const TrainConfig& c = run.config.train;
  const std::int64_t tasks_every = c.eval_tasks_interval ? c.eval_tasks_interval : c.eval_interval;
  return {.validation = c.eval_interval && step % c.eval_interval == 0,
          .tasks = !run.tasks.empty() && tasks_every && step % tasks_every == 0};
}

std::string find_newest_checkpoint(const RunDirectory& dir, Mesh& mesh) {
  return broadcast_from_rank0(mesh.host(), [&] {
    const auto found = find_newest_verified(dir.checkpoints());
    return found ? found->path.string() : std::string();
  });
}

std::string find_initial_weights(const ResolvedRun& s, Mesh& mesh) {
  return broadcast_from_rank0(mesh.host(), [&] { return initial_weights(s); });
}

RunStart start_run(Config given, const TrainOptions& options, Mesh& mesh) {
  if (!is_utf8(given.run.path()))
    fail("run.directory: expected a path in UTF-8, got '", shown(given.run.path()),
         "', which a run's records cannot hold. Rename the folder");
  ResolvedRun resolved = resolve_run(std::move(given), options, mesh);
  LocatedRun located = locate_run(std::move(resolved), options, mesh);
  FittedRun fitted = fit_run(std::move(located), options, mesh);
  return claim_run(std::move(fitted), options, mesh);
}

}  // namespace ring
