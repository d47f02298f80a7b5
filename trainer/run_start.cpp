#include "trainer/run_start.h"

#include <algorithm>
#include <filesystem>
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
#include "engine/important_blocks.h"
#include "engine/memory_check.h"
#include "engine/origin.h"
#include "engine/planner.h"
#include "engine/rates.h"
#include "evaluate/session.h"
#include "generated/build_info.h"
#include "job/worker_page.h"
#include "model/architectures.h"
#include "trainer/records.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

std::string initial_weights(const RunStart& s) {
  if (s.config.run.init_from.empty()) return "";
  const FoundCheckpoint found = find_checkpoint(s.config.run.init_from);
  check_tokenizer(s.corpora, origin_of(found).tokenizer_hash(), "run.init_from " + found.path.string());
  return found.path.string();
}

std::string listed(const std::vector<std::string>& changes) {
  std::string list;
  for (const std::string& change : changes) list += "\n  " + change;
  return list;
}

// Whether the settings are those of config.yaml, which says that somebody allowed them to replace the checkpoint's.
bool allowed_before(const RunStart& s, const Origin& origin, const RunSettings& file) {
  return replaces(file, origin) && changes_of_numbers(file.config, s.config).empty();
}

void warn_once(RunStart& s, const std::string& warning) {
  if (s.warnings.insert(warning).second) log::warn(warning);
}

// Keys that are free to change are nobody's mistake where somebody gave them, and damage or forgotten edits in a file.
void warn_of_edits(RunStart& s, const Origin& origin, const RunSettings& file) {
  if (file.untouched || !changes_of_numbers(file.config, s.config).empty()) return;
  const std::vector<std::string> where = {"run.name", "run.directory"};
  std::vector<std::string> edits = diff_configs(origin.config, file.config, where);
  const std::vector<std::string> given = diff_configs(file.config, s.config, where);
  std::erase_if(edits, [&](const std::string& edit) {
    const std::string key = edit.substr(0, edit.find(':') + 1);
    return std::ranges::any_of(given, [&](const std::string& g) { return g.starts_with(key); });
  });
  if (!edits.empty())
    warn_once(s, str(s.dir.config_file(),
                     " was changed since the run wrote it; it differs from the checkpoint in:", listed(edits)));
}

// For who leaves out what --fit or auto chose when the run began.
std::string advice_on_sizes(const RunStart& s, const Origin& origin) {
  const TrainConfig &old = origin.config.train, &now = s.config.train;
  if (now.micro_batch == 0 && old.micro_batch > 0)
    return str("To go on with the run's train.micro_batch: ", old.micro_batch,
               ", as it may have been chosen: --fit or train.micro_batch=auto. ");
  if (now.mlp_chunk == 0 && old.mlp_chunk > 0)
    return str("To go on with the run's train.mlp_chunk: ", old.mlp_chunk,
               ", as it may have been chosen: train.mlp_chunk=auto. ");
  return "";
}

// Returns the shape of each parameter by name. Leaves out the parameters of attention's indexers and pools: they may be
// missing in a checkpoint that is resumed.
std::map<std::string, Shape> shapes_of(ModelConfig model) {
  model.attention = {};
  model.attention_layers.clear();
  const std::unique_ptr<Model> decoder = make_model(model);
  std::map<std::string, Shape> shapes;
  for (const Param* p : decoder->parameters().declared())
    for (const LogicalParam& part : p->parts) shapes[part.name] = part.whole;
  return shapes;
}

// Throws Error if the settings changed the shapes of the checkpoint's tensors, which no option allows.
void check_shapes(const RunStart& s, const Origin& origin, const std::vector<std::string>& changes) {
  std::vector<std::string> of_model = changes;
  std::erase_if(of_model, [](const std::string& change) { return !change.starts_with("model."); });
  if (of_model.empty() || shapes_of(origin.config.model) == shapes_of(s.config.model)) return;
  fail(s.dir.path(), ": the tensors of the checkpoint ", origin.checkpoint,
       " do not have the shapes of this model:", listed(of_model), "\nResume with the old settings (ringmaster train ",
       s.dir.path(), "), or train the new model in a run of its own: run.name=NAME");
}

// Refuses settings that differ from those that the checkpoint was trained with, naming the keys.
void check_settings(RunStart& s, const Origin& origin, const RunSettings* file, bool allow_changes) {
  if (const auto rounding = changes_of_rounding(origin.config, s.config); !rounding.empty())
    warn_once(s, str("resuming with ", joined(rounding, ", "),
                     ": sums are rounded in another order, so that losses agree closely instead of bit for bit"));
  if (file) s.replaced = file->replaced;
  if (file) warn_of_edits(s, origin, *file);
  const std::vector<std::string> changes = changes_of_numbers(origin.config, s.config);
  if (changes.empty()) return;
  check_shapes(s, origin, changes);
  if (allow_changes || (file && allowed_before(s, origin, *file))) {
    check_sizes_of_important_blocks(origin.config.model, s.config.model, s.dir.path());
    warn_once(s, str("resuming ", s.dir.path(), " with changed settings:", listed(changes)));
    s.changed = true;
    if (std::ranges::count(s.replaced, origin.config_hash) == 0) s.replaced.push_back(origin.config_hash);
    return;
  }
  if (file && changes_of_numbers(file->config, s.config).empty())
    fail(s.dir.config_file(), " differs from the settings in the checkpoint ", origin.checkpoint, ":", listed(changes),
         "\nRestore the file (", s.dir.restoring_command(origin.checkpoint),
         "), pass --allow-changes to go on with what it says, --fresh to start over, or set another run.name");
  fail(s.dir.path(), ": the run has other settings:", listed(changes), "\n", advice_on_sizes(s, origin),
       "Resume with the old ones (ringmaster train ", s.dir.path(),
       "), pass --allow-changes to go on with the new ones, --fresh to start over, or set "
       "another run.name");
}

// It is written again from the corpus when the run goes on.
void warn_of_tokenizer(RunStart& s, const Origin& origin) {
  try {
    load_tokenizer_of(origin, s.dir.tokenizer_file());
  } catch (const Error& e) {
    warn_once(s, str(e.what(), ", which happens now"));
  }
}

// A run that has a checkpoint does not read run.init_from again. Throws Error if the settings name another source.
void check_source(const RunStart& s, const Origin& origin) {
  const std::string &before = origin.config.run.init_from, &now = s.config.run.init_from;
  if (now.empty() || now == before) return;
  fail("run.init_from: ", now, " has no effect, since ", s.dir.path(), " began from ",
       before.empty() ? "random weights" : before, ". To begin from it, set another run.name");
}

void check_resumption(RunStart& s, const Origin& origin, const TrainOptions& options) {
  refuse_imported(s.dir, origin);
  check_source(s, origin);
  std::optional<RunSettings> file;
  if (s.dir.has_config())
    file = s.dir.settings();
  else
    log::warn(s.dir.path(), " has checkpoints and no config.yaml: the settings are compared with those in ",
              origin.checkpoint);
  check_settings(s, origin, file ? &*file : nullptr, options.allow_changes);
  check_tokenizer(s.corpora, origin.tokenizer_hash(), "run " + s.dir.path());
  if (!options.allow_changes)
    check_data(origin, s.corpora, "Put the old ones back, pass --allow-changes, or start another run.name");
  else if (const auto changes = changes_of_data(origin, s.data, s.config.model); !changes.empty())
    warn_once(s, str("resuming ", s.dir.path(), " with other data:", listed(changes))), s.changed = true;
  warn_of_tokenizer(s, origin);
}

void refuse_to_delete_source(const RunStart& s) {
  const auto source = s.init_from.empty() ? std::nullopt : run_around(s.init_from);
  std::error_code error;
  if (source && fs::equivalent(source->path(), s.dir.path(), error))
    fail("--fresh would delete the weights that run.init_from takes from ", s.init_from, ": set another run.name");
}

// What takes no time. A directory that is not there yet is made only once nothing can be refused any more. Returns what
// the run recorded of its memory, as text; empty: nothing.
std::string look(RunStart& s, const TrainOptions& options) {
  std::error_code error;
  if (fs::exists(s.dir.path(), error)) s.lock = s.dir.lock();
  if (options.fresh) return "";
  const std::optional<Origin> origin = newest_origin(s.dir);
  if (origin) s.checkpoint = origin->checkpoint;
  if (origin) check_resumption(s, *origin, options);
  const std::optional<MemoryRecord> memory = recall_memory(s.dir, origin ? origin->memory : "");
  return memory ? to_json(*memory) : "";
}

// What a run went down to when memory ran out holds as long as it is asked for the same, on the same memory.
void repeat_memory(RunStart& s, const std::string& recorded, Mesh& mesh) {
  s.steps = s.config;
  s.memory = memory_record_of(s.config, mesh);
  if (recorded.empty()) return;
  const MemoryRecord old = parse_memory_record(recorded);
  if (old.ran_out == 0) return;
  const BatchSize steps = batch_size(s.config);
  const auto divides = [&](std::int64_t sequences) { return sequences / mesh.degree("dp") % old.micro_batch == 0; };
  std::string changes = changes_since(old, s.memory);
  if (changes.empty() && !(divides(steps.sequences) && std::ranges::all_of(steps.others, divides)))
    changes = str("micro_batch ", old.micro_batch, " divides nothing");
  if (mesh.rank() == 0 && !changes.empty())
    log::warn("memory ran out before (", old.why, "), but what the run went down to then no longer counts: ", changes);
  if (!changes.empty()) return;
  s.memory = old;
  s.steps.train.micro_batch = old.micro_batch;
  if (mesh.rank() == 0)
    log::info("memory ran out before, and the run stays at what it went down to (", s.dir.memory_file(),
              " says when): ", old.went_down_to());
}

// From here on nobody else commits here: what comes after sees every checkpoint that there will be without this
// process.
void take_over(RunStart& s) {
  if (!s.lock) s.lock = s.dir.lock();
  s.token = std::make_unique<WriterToken>(s.dir.path());
  remove_stale(s.dir.checkpoints());
}

// The last one that a process recorded here; 0: none. A file that cannot be read is no reason not to begin.
std::int64_t last_recorded_step(const RunDirectory& dir) try {
  std::int64_t step = 0;
  read_records(dir.metrics_file(), [&](const Record& r) { step = std::max(step, r.step); });
  return step;
} catch (const Error&) {
  return 0;
}

void warn_of_lost_steps(const RunStart& s) {
  const std::int64_t steps = last_recorded_step(s.dir);
  if (steps == 0) return;
  const CheckpointConfig& c = s.config.checkpoint;
  log::warn(s.dir.path(), " has records of ", counted(steps, "step"),
            " and no checkpoint to go on from: it begins anew. ",
            c.automatic ? str("checkpoint.auto saves first after 10 s. To save earlier, set checkpoint.auto: false and "
                              "checkpoint.interval")
                        : str("To lose fewer steps the next time, set checkpoint.interval (", c.interval,
                              " here) or checkpoint.minutes"));
}

// A launcher's restart would begin anew what the workers before had trained, if their directory is gone.
void refuse_to_lose_the_run(const RunStart& s, const TrainOptions& options) {
  const bool begun = options.restarts > 0 && own_page().begun != 0;
  if (begun && !s.dir.exists())
    fail(s.dir.path(),
         " was removed or moved since this job began, and the launcher keeps no copy of the state "
         "(checkpoint.memory_interval). Move the directory back, or start the job again to begin anew");
}

// What reads whole checkpoints.
void choose(RunStart& s, const TrainOptions& options) {
  if (s.lock) take_over(s);
  const std::vector<CheckpointEntry> all = list_checkpoints(s.dir.checkpoints());
  if (s.kept && (all.empty() || all.back().step <= *s.kept)) {
    if (!s.token) {
      log::warn(s.dir.path(),
                " was removed or moved since this job began: it is made anew for the state that the "
                "launcher keeps");
      take_over(s);
    }
    return log::open_file(s.dir.log_file());
  }
  refuse_to_lose_the_run(s, options);
  s.kept.reset();
  const std::string looked_at = std::exchange(s.checkpoint, "");
  const auto found = options.fresh ? std::nullopt : find_newest_verified(s.dir.checkpoints());
  if (found) s.checkpoint = found->path.string();
  if (found && s.checkpoint != looked_at) check_resumption(s, origin_of(*found), options);
  if (!found) s.init_from = initial_weights(s);  // once a run has a checkpoint, the other may be gone
  if (options.fresh) refuse_to_delete_source(s);
  if (!s.token) take_over(s);
  log::open_file(s.dir.log_file());
  if (!found && !options.fresh) warn_of_lost_steps(s);
}

// What the launcher keeps counts for the same settings, data, program and layout.
void look_into_memory(RunStart& s, const TrainOptions& options, Mesh& mesh) {
  if (s.config.checkpoint.memory_interval > 0) {
    s.tier = open_memory_tier({to_yaml(s.config), s.data, build_info::kCommit, str(mesh.rank(), " of ", mesh.world())});
    if (!s.tier && mesh.rank() == 0)
      log::warn(
          "checkpoint.memory_interval: nothing is kept in memory without `ringmaster launch`, which would keep it");
  }
  s.saving = check_memory(s.config, mesh, s.tier.get());
  if (s.tier && !s.saving.keeps) s.tier->clear();
  if (s.saving.keeps && !options.fresh) s.kept = newest_common_step(s.tier.get(), mesh.host());
}

bool goes_on_with_micro_batch(const Config& c, const TrainOptions& options) {
  const RunDirectory dir(c.run.path());
  return !options.fresh && dir.exists() && settings_to_go_on(dir, false).train.micro_batch == c.train.micro_batch;
}

// --fit is train.micro_batch: auto. The settings of a run that goes on have what it chose.
bool chooses_micro_batch(const Config& c, const TrainOptions& options, Mesh& mesh) {
  if (c.train.micro_batch == kAutoMicroBatch) return true;
  if (!options.fit || c.train.micro_batch == 0) return options.fit;
  by_leader(mesh.host(), [&] {
    if (!goes_on_with_micro_batch(c, options))
      fail("--fit chooses train.micro_batch, but the settings say train.micro_batch: ", c.train.micro_batch,
           ". Take that out of them, or give train.micro_batch=auto on the command line in place of --fit");
    return true;
  });
  return false;
}

// What a run that begins computes at a time, or one that goes on has computed since it began.
StepSizes fitting_sizes(const Config& resolved, bool rows, const TrainOptions& options, std::size_t budget, int world) {
  const RunDirectory dir(resolved.run.path());
  if (!options.fresh && dir.exists()) {
    const TrainConfig before = settings_to_go_on(dir, false).train;
    return {before.micro_batch, before.mlp_chunk};
  }
  const PlanQuestion question{resolved, world, budget, rates_named("", resolved)};
  if (rows) return fit_micro_batch(question);
  return {resolved.train.micro_batch, fit_mlp_chunk(question)};
}

// Sets train.micro_batch and train.mlp_chunk, where they are auto, to what is fastest and fits.
void fit(Config& c, const TrainOptions& options, std::int64_t vocab, Mesh& mesh) {
  const bool rows = chooses_micro_batch(c, options, mesh), chunk = c.train.mlp_chunk == kAutoMlpChunk;
  if (!rows && !chunk) return;
  if (rows) c.train.micro_batch = 1;
  Config small = resolve_config(c, vocab, mesh);
  small.train.mlp_chunk = c.train.mlp_chunk;
  const std::size_t host = least_of(activation_room(small, mesh), mesh);
  if (small.train.activation_offload == Switch::automatic)
    small.train.activation_offload_bytes = narrow<std::int64_t>(host);
  const std::size_t budget = memory_budget(small, mesh);
  const StepSizes sizes =
      by_leader(mesh.host(), [&] { return fitting_sizes(small, rows, options, budget, mesh.world()); });
  if (rows) c.train.micro_batch = sizes.micro_batch;
  if (chunk) c.train.mlp_chunk = sizes.mlp_chunk;
  if (rows && mesh.rank() == 0) log::info("train.micro_batch: auto is ", sizes.micro_batch);
  if (chunk && mesh.rank() == 0)
    log::info("train.mlp_chunk: auto is ", sizes.mlp_chunk ? counted(sizes.mlp_chunk, "token") : "0, all at once");
}

// All ranks read them, and must read the same.
std::vector<Task> agreed_tasks(const Config& c, const TokenStore& store, Mesh& mesh) {
  if (c.train.eval_tasks.empty()) return {};
  std::vector<Task> tasks =
      read_tasks("train.eval_tasks", c.train.eval_tasks, *store.tokenizer(), c.model.context, mesh.rank() == 0);
  Facts facts;
  for (const Task& task : tasks) facts.push_back({task.name, str("hash ", task.hash)});
  if (mesh.world() > 1)
    mesh.agree({"tasks", "the ranks read different tasks", "Put the same files on every machine"}, facts);
  return tasks;
}

void warn_of_unused_intervals(const CheckpointConfig& c) {
  if (c.automatic && (c.interval != CheckpointConfig{}.interval || c.minutes > 0))
    log::warn(
        "checkpoint.interval and checkpoint.minutes have no effect with checkpoint.auto: true. Set auto: false to "
        "use them");
}

// Other programs take an absolute rate (nanoGPT's min_lr). A fraction as small as a rate is probably meant as one.
void warn_of_final_rate(const Config& c) {
  const double last = c.schedule.final_lr, rate = c.optimizer.lr;
  const bool used = c.schedule.kind != ScheduleKind::constant && last != ScheduleConfig{}.final_lr;
  if (!used || last <= 0 || last > rate) return;
  log::warn("schedule.final_lr: ", last, " is a fraction of optimizer.lr: ", rate,
            ", so that the learning rate falls to ", last * rate, ". If it should fall to ", last,
            ", set schedule.final_lr=", last / rate);
}

void warn_of_warmup(const Config& c) {
  const std::int64_t warmup = c.schedule.warmup_steps, steps = c.train.steps;
  if (steps == 0 || warmup <= steps) return;
  log::warn("schedule.warmup_steps: ", warmup, warmup == ScheduleConfig{}.warmup_steps ? ", the default," : "",
            " is more than train.steps: ", steps, ", so that the learning rate rises to ", steps, "/", warmup,
            " of optimizer.lr only. Shorten the warm-up, for example to a twentieth of the run: schedule.warmup_steps=",
            std::max<std::int64_t>(1, steps / 20));
}

}  // namespace

std::string find_newest_checkpoint(const RunDirectory& dir, Mesh& mesh) {
  return by_leader(mesh.host(), [&] {
    const auto found = find_newest_verified(dir.checkpoints());
    return found ? found->path.string() : std::string();
  });
}

std::string find_initial_weights(const RunStart& s, Mesh& mesh) {
  return by_leader(mesh.host(), [&] { return initial_weights(s); });
}

RunStart start_run(Config config, const TrainOptions& options, Mesh& mesh) {
  if (!is_utf8(config.run.path()))
    fail("run.directory: expected a path in UTF-8, got '", shown(config.run.path()),
         "', which a run's records cannot hold. Rename the folder");
  RunStart s{.corpora = open_agreed_corpora(config, mesh), .config = {}, .dir = RunDirectory(config.run.path())};
  const double epochs = config.train.epochs;
  resolve_length(config, s.corpora);
  if (epochs > 0 && mesh.rank() == 0) log::info("train.epochs: ", epochs, " is train.steps: ", config.train.steps);
  fit(config, options, s.corpora.vocab_size, mesh);
  s.config = resolve_config(std::move(config), s.corpora.vocab_size, mesh);
  if (mesh.rank() == 0)
    warn_of_warmup(s.config), warn_of_final_rate(s.config), warn_of_unused_intervals(s.config.checkpoint);
  if (s.config.run.device == DeviceChoice::cuda) Stream::create({Backend::cuda, mesh.device().index});  // is it there?
  s.tasks = agreed_tasks(s.config, *s.corpora.stores.front(), mesh);
  s.data = data_fingerprint(s.corpora, s.config.model);
  repeat_memory(s, by_leader(mesh.host(), [&] { return look(s, options); }), mesh);
  look_into_memory(s, options, mesh);
  s.loader = std::make_unique<Loader>(s.corpora, loader_options(s.steps, mesh));
  own_page().start.reach(StartStage::planned);
  s.checkpoint = by_leader(mesh.host(), [&] { return choose(s, options), s.checkpoint; });
  own_page().start.reach(StartStage::chosen);
  s.kept = by_leader(mesh.host(), [&] { return s.kept; });
  s.init_from = by_leader(mesh.host(), [&] { return s.init_from; });
  s.memory.token = by_leader(mesh.host(), [&] { return s.token->number(); });
  // A note of the last process counts for its token alone: from here on it is the record.
  if (mesh.rank() == 0 && s.memory.ran_out > 0) write_memory(s.dir, s.memory);
  if (!s.checkpoint.empty()) agree_on_checkpoint(s.checkpoint, mesh);
  return s;
}

}  // namespace ring
