#include "trainer/run_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/counted.h"
#include "core/fields.h"
#include "core/joined.h"
#include "core/log.h"
#include "core/yaml_leaves.h"
#include "data/packing.h"
#include "data/token_store.h"
#include "engine/run_directory.h"
#include "kernels/attention/blocks.h"
#include "model/attention_schedule.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "model/scopes.h"
#include "optim/groups.h"
#include "optim/kinds.h"
#include "parallel/ineffective_keys.h"
#include "trainer/ineffective_attention.h"
#include "trainer/records.h"

namespace ring {
namespace {

constexpr std::size_t kMaxUnrecorded = 1000;

ProgressOptions options_of(const Config& c) {
  ProgressOptions options;
  options.log_interval = c.train.log_interval;
  return options;
}

// Warns if the model's vocabulary is larger than the corpus's: padding is harmless, but a different tokenizer's tokens
// would not match.
void warn_of_vocabulary(const Config& c, std::int64_t corpus_vocab) {
  if (c.model.vocab_size > corpus_vocab)
    log::warn("model.vocab_size: ", c.model.vocab_size, " is larger than the vocabulary of the corpus, ", corpus_vocab,
              ". The model spends memory and time on ", counted(c.model.vocab_size - corpus_vocab, "token"),
              " that it never sees. Set it to 0 to use the corpus's, unless the difference is intended as padding");
}

// Warns if a document's attention depends on the document's offset in the sample, because of data.packing.align.
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
        return log::warn("data.packing.align: ", c.data.packing.align, " is not a multiple of ", unit, ", a ",
                         p.blocks ? "block" : "segment", " of the attention of layer ", layer,
                         ", so a document's attention depends on where in its sample it starts. To prevent this, set a "
                         "multiple of all segments and blocks, at the cost of padding");
    ++layer;
  }
}

// Warns if more than 1 % of the documents are split although they fit into a sample: the rest of a split answer is then
// trained without the prompt.
void warn_of_cuts(const Config& c, const TokenStore& corpus) {
  if (c.data.packing.best_fit) return;
  const TokenSplit& split = corpus.train();
  const std::uint64_t documents = split.documents(),
                      in_order = pack_rows(split, c.model.context, c.data.packing)->cut_documents(),
                      needed = documents_longer_than(split, c.model.context);
  if ((in_order - needed) * 100 <= documents) return;
  log::warn("data.packing.best_fit: 0 splits ", in_order, " of ", documents, " documents of ", corpus.path(),
            " at the ends of samples. 1024 would split ", needed);
}

// If only some tokens are targets (e.g. answers), warns if these tokens also attend to other documents, or if documents
// are split too often.
void warn_of_masks(const Config& c, const Corpora& corpora) {
  const auto masked = std::ranges::find_if(corpora.stores, [](const auto& s) { return s->train().masked(); });
  if (masked == corpora.stores.end()) return;
  if (c.data.packing.documents) return warn_of_cuts(c, **masked);
  log::warn("data.packing.documents: false: in ", (*masked)->path(),
            ", only some tokens are targets, and they also see the documents before their own. For fine-tuning, set it "
            "to true");
}

// Returns e.g. "1 process on cpu" or "4 processes on cuda (tp 2, cp 2 zigzag)".
std::string layout_text(const Trainer& trainer, int processes) {
  const std::string device(to_string(trainer.exec().stream.device().backend));
  if (processes == 1) return "1 process on " + device;
  return str(processes, " processes on ", device, " (", trainer.plan().text(), ")");
}

std::string length_text(const TrainConfig& c) {
  if (c.steps) return counted(c.steps, "step") + " of ";
  return str(c.minutes, c.minutes == 1 ? " minute" : " minutes", " in steps of ");
}

// Returns the phase with the highest memory peak.
PhaseMemory fullest_phase(const MemoryStats& memory) {
  const auto max = std::max_element(memory.phases.begin(), memory.phases.end(),
                                    [](const PhaseMemory& a, const PhaseMemory& b) { return a.peak < b.peak; });
  return max == memory.phases.end() ? PhaseMemory{} : *max;
}

// Returns the name of a model part in metrics, e.g. "blocks.3" or "final_norm".
std::string key_of(const ScopeId& part) {
  std::string key = str(part);
  std::ranges::replace(key, ' ', '_');
  return key;
}

void add_sources(Metrics::Values& values, const std::vector<SourceLoss>& sources,
                 const std::vector<std::string>& names) {
  for (const auto& [name, loss] : mean_losses(sources, names)) values.emplace_back(kSourceLoss + name, loss);
}

void add_shares(Metrics::Values& values, const std::vector<SourceLoss>& sources,
                const std::vector<std::string>& names) {
  double all = 0;
  for (const SourceLoss& s : sources) all += s.targets;
  for (std::size_t i = 0; all > 0 && i < sources.size(); ++i)
    values.emplace_back(kSourceShare + names[i], sources[i].targets / all);
}

// Returns the source of a resumed run's state, for the log.
std::string source_text(const StartingState& from) {
  if (from.from_survivors && from.survivors->islands <= 1) return str("kept in memory by rank ", from.survivors->donor);
  if (from.from_survivors)
    return str("kept in memory by the islands; the one that is furthest has done step ", from.survivors->step);
  return from.kept ? "kept in memory by the launcher" : from.resumed.checkpoint;
}

// Returns how the islands that lost a process continue, and how the number of islands has changed, for the log.
std::string lost_islands_text(const StartingState& from) {
  const KeptStates& kept = *from.survivors;
  std::string text, numbers;
  for (const int i : kept.lost_islands()) numbers += str(numbers.empty() ? "" : ", ", i);
  if (kept.donor_from.islands != kept.islands)
    text = str("; there were ", kept.donor_from.islands, " islands, and now there ", kept.islands == 1 ? "is " : "are ",
               kept.islands);
  if (numbers.empty()) return text;
  if (from.kept)
    return str("; island ", numbers, " repeats its steps since step ", *from.kept,
               ", which the launcher kept in memory");
  if (kept.renumbered) return str(text, "; island ", numbers, " starts from the outer weights");
  return str("; island ", numbers, " starts again from the outer weights of step ", kept.exchange().step);
}

std::string seconds_text(double seconds) { return str(std::round(seconds * 1000) / 1000, " s"); }

}  // namespace

RunLog::RunLog(const RunStart& start, Trainer& trainer, int processes, const JobTime& job, GpuWatch* gpu)
    : config_(start.config),
      trainer_(trainer),
      job_(job),
      gpu_(gpu),
      directory_(start.dir.path()),
      progress_(options_of(config_)),
      attention_changes_(attention_change_points(config_.model)),
      names_(start.corpora.names),
      masked_(std::ranges::any_of(start.corpora.stores, [](const auto& s) { return s->validation().masked(); })) {
  count_flops(trainer.next_context(), trainer.tokens_seen());
  record_settings(start, processes);
  const bool resumed = start.from.resumes();
  const std::int64_t done = start.from.from_survivors ? start.from.survivors->step : trainer.steps_done();
  metrics_.emplace(directory_, resumed ? std::optional(done) : std::nullopt);
  if (!resumed) metrics_->write_text("config", to_yaml(config_));
  if (!resumed) metrics_->write_hparams(yaml_leaves(to_yaml(config_)));
  log_start(processes);
}

void RunLog::log_start(int processes) {
  metrics_->record("start", trainer_.steps_done(),
                   {{"device", std::string(to_string(trainer_.exec().stream.device().backend))},
                    {"device_name", trainer_.exec().stream.impl().device_name()},
                    {"processes", std::int64_t{processes}},
                    {"layout", processes > 1 ? trainer_.plan().text() : ""},
                    {"threads", config_.run.threads},
                    {"parameters", trainer_.model().parameters().num_elements()},
                    {"tokens_per_step", trainer_.next_batch_size() * config_.model.context},
                    {"flops_per_token", flops_per_token_}});
}

static void describe_updates(const OptimizerConfig& optimizer, const Parameters& bound) {
  const std::vector<std::string> lines = describe_groups(optimizer, bound);
  if (optimizer.groups.empty() && optimizer.kind == kElementKind) return;
  for (const std::string& line : lines) log::info("optimizer: ", line);
}

void RunLog::record_settings(const RunStart& start, int processes) {
  const double parameters = static_cast<double>(trainer_.model().parameters().num_elements());
  log::info("run ", directory_, ": ", format_count(parameters), " parameters, ", length_text(config_.train),
            config_.train.batch_sizes.empty() ? "" : "at most ",
            counted(config_.train.batch_size * config_.model.context, "token"), ", ", layout_text(trainer_, processes),
            ", ", counted(config_.run.threads, "thread"), processes > 1 ? " each" : "");
  log::info("memory: ", trainer_.memory().text(trainer_.lasting_memory_text()));
  describe_updates(config_.optimizer, trainer_.model().parameters());
  if (const std::string text = trainer_.islands_text(); !text.empty()) log::info(text);
  warn_of_vocabulary(config_, start.corpora.vocab_size);
  warn_of_places(config_);
  warn_of_masks(config_, start.corpora);
  warn_of_ineffective_attention(config_, start.corpora);
  for (const std::string& warning : ineffective_keys(trainer_.plan(), config_.model)) log::warn(warning);
  for (const auto& rows : start.loader->map().rows())
    log::info("packing: ", counted(static_cast<std::int64_t>(rows->rows()), "sample"), " per epoch, ",
              std::round(1000 * rows->filled_share()) / 10, " % of their positions hold tokens, the rest is padding; ",
              counted(static_cast<std::int64_t>(rows->cut_documents()), "document"),
              rows->cut_documents() == 1 ? " is split" : " are split");
  if (start.from.resumes())
    log::info("resuming from step ", trainer_.steps_done(), " (", source_text(start.from), ")");
  else if (!start.from.init_from.empty())
    log::info("weights from ", start.from.init_from);
}

void RunLog::log_memory_shortage(const MemoryRecord& m) {
  metrics_->record("memory", trainer_.steps_done(),
                   {{"ran_out", m.ran_out},
                    {"micro_batch", m.micro_batch},
                    {"validation_micro_batch", m.validation_micro_batch ? m.validation_micro_batch : m.micro_batch},
                    {"budget", static_cast<std::int64_t>(m.budget)},
                    {"peak", static_cast<std::int64_t>(m.peak)},
                    {"plan", m.plan},
                    {"why", m.why}});
}

void RunLog::log_restart(const StartingState& from) {
  Metrics::Values values = {{"restarts", job_.restarts}, {"seconds_lost", job_.restart_seconds}};
  std::string what;
  if (from.survivors) {
    const std::vector<int>& replaced = from.survivors->replaced;
    const std::int64_t stayed = std::ssize(from.survivors->holders) - std::ssize(replaced);
    std::string ranks;
    for (const int rank : replaced) ranks += str(ranks.empty() ? "" : ", ", rank);
    values.insert(values.end(), {{"replaced_ranks", ranks}, {"workers_stayed", stayed}});
    const char* were = replaced.size() == 1 ? " was replaced; " : " were replaced; ";
    const std::string lost = replaced.empty() ? "" : str("rank", replaced.size() == 1 ? " " : "s ", ranks, were);
    what = str(": ", lost, counted(stayed, "worker"), " kept running");
    if (from.from_survivors) what += lost_islands_text(from);
  }
  metrics_->record("restart", trainer_.steps_done(), values);
  log::info("restart ", job_.restarts, " of this job", what, "; restarts have cost ", job_.restart_seconds,
            " s so far");
}

bool RunLog::has_record(const std::string& group, std::int64_t step) const {
  bool found = false;
  read_records(RunDirectory(directory_).metrics_file(),
               [&](const Record& r) { found |= r.group == group && r.step == step; });
  return found;
}

void RunLog::log_step_if_missing(const StepReport& r) {
  if (!logs_step(config_.train, r.step) || !has_record("train", r.step)) log_step(r);
}

ProgressState RunLog::progress_state() const {
  ProgressState p;
  p.step = last_.step;
  p.total_steps = config_.train.steps;
  p.loss = last_.loss;
  p.val_loss = val_loss_;
  p.lr = last_.lr;
  if (interval_seconds_ > 0) {
    p.tokens_per_second = static_cast<double>(interval_tokens_) / interval_seconds_;
    p.step_ms = interval_seconds_ / static_cast<double>(interval_steps_) * 1e3;
    p.eta_seconds = trainer_.seconds_left();
  }
  return p;
}

void RunLog::log_plan() {
  if (plan_logged_ || !trainer_.arena().has_slab()) return;
  plan_logged_ = true;
  const MemoryPlan plan = trainer_.arena().plan();
  const MemoryStats memory = trainer_.exec().stream.allocator()->stats();
  log::debug("memory: ", bytes_text(plan.bytes), " are planned for activations, of which at most ",
             bytes_text(plan.live_peak), " are in use at once; ", bytes_text(memory.reserved),
             " are reserved from the system; the peak was ", bytes_text(memory.peak), ", during ",
             fullest_phase(memory).phase);
  if (trainer_.offload()) log_offload(*trainer_.offload());
  log_page_locks(page_lock_facts(trainer_.exec().stream.device()));
}

void RunLog::log_page_locks(const PageLockFacts& f) {
  if (f.taken)
    log::debug("memory: ", bytes_text(f.locked), " of the host", f.node ? str(" (NUMA node ", *f.node, ")") : "",
               " are page-locked; copies have waited ", seconds_text(f.waited), " for locking");
}

void RunLog::log_offload(const HostOffload& offload) {
  const OffloadedBytes& bytes = offload.bytes();
  log::debug("memory: ", bytes_text(bytes.moved), " of activations are offloaded to the host, which reserves ",
             bytes_text(offload.host_bytes()), " for them");
  if (bytes.stayed)
    log::warn("train.activation_offload_bytes: ", bytes_text(bytes.stayed),
              " of activations do not fit on the host and stay on the device");
}

void RunLog::count_flops(std::int64_t context, std::int64_t trained) {
  const std::pair now(context, attention_stage(attention_changes_, trained));
  if (std::exchange(counted_, now) == now) return;
  const ModelConfig model = with_attention_at(config_.model, trained);
  flops_per_token_ = flops_per_token(model, context);
  const double tokens = static_cast<double>(context), layers = static_cast<double>(model.layers);
  density_ = attention_pairs(model, context) / (layers * tokens * (tokens + 1) / 2);
}

// Logs scheduled settings that differ from those of the previous step.
void RunLog::log_scheduled_changes(const StepReport& r) {
  if (last_.step == 0) return;
  std::vector<std::string> changes;
  if (r.sequences != last_.sequences)
    changes.push_back(str("train.batch_size: ", last_.sequences, " -> ", r.sequences));
  if (r.context != last_.context) changes.push_back(str("train.context: ", last_.context, " -> ", r.context));
  if (attention_stage(attention_changes_, r.trained) != attention_stage(attention_changes_, last_.trained)) {
    Config before = config_, now = config_;
    before.model = with_attention_at(config_.model, last_.trained),
    now.model = with_attention_at(config_.model, r.trained);
    for (const std::string& change : diff_configs(before, now)) changes.push_back(change);
  }
  if (!changes.empty())
    log::info("from step ", r.step, " on, after ", counted(r.trained, "token"), ": ", joined(changes, ", "));
}

void RunLog::log_step(const StepReport& r) {
  log_plan();
  log_scheduled_changes(r);
  count_flops(r.context, r.trained);
  last_ = r;
  interval_seconds_ += r.seconds;
  interval_tokens_ += r.tokens;
  ++interval_steps_;
  add_losses(interval_sources_, r.sources);
  progress_.update(progress_state());
  unrecorded_.push_back(r);
  if (unrecorded_.size() > kMaxUnrecorded) unrecorded_.pop_front();
  if (logs_step(config_.train, r.step)) record_step(r);
  if (!r.watched.empty()) record_diagnostics(r);
}

namespace {

// Adds the means over pairs, under the names of TRL's DPOTrainer.
void add_rewards(Metrics::Values& values, const PairLoss& mean) {
  values.emplace_back(str(kRewards, "chosen"), mean.chosen);
  values.emplace_back(str(kRewards, "rejected"), mean.rejected);
  values.emplace_back(str(kRewards, "margins"), mean.chosen - mean.rejected);
  values.emplace_back(str(kRewards, "accuracies"), mean.correct);
}

}  // namespace

void RunLog::record_step(const StepReport& r) {
  const MemoryStats memory = trainer_.exec().stream.allocator()->stats();
  const double tokens_per_second = static_cast<double>(interval_tokens_) / interval_seconds_;
  Metrics::Values values = {{"loss", r.loss},
                            {"grad_norm", r.norm},
                            {"lr", r.lr},
                            {"tokens", r.trained + r.tokens},
                            {"batch_size", r.sequences},
                            {"context", r.context},
                            {"tokens_per_second", tokens_per_second},
                            {"flops_per_second", flops_per_token_ * tokens_per_second},
                            {"step_ms", r.seconds * 1e3},
                            {"data_ms", r.data_seconds * 1e3},
                            {"exchange_ms", r.exchange_seconds * 1e3},
                            {"context_bytes", trainer_.cp_batches().bytes_sent()},
                            {"memory_in_use", static_cast<std::int64_t>(memory.in_use)},
                            {"memory_peak", static_cast<std::int64_t>(memory.peak)},
                            {"memory_peak_phase", str(fullest_phase(memory).phase)},
                            {"memory_reserved", static_cast<std::int64_t>(memory.reserved)},
                            {"memory_fragmentation", memory.fragmentation()}};
  if (config_.schedule.final_weight_decay != 1)
    values.emplace_back("weight_decay", config_.optimizer.weight_decay * r.decay_scale);
  if (!attention_changes_.empty()) values.emplace_back("attention_pairs", density_);
  if (r.auxiliary_loss) values.emplace_back(trainer_.model().auxiliary_loss(), *r.auxiliary_loss);
  if (r.pairs) add_rewards(values, *r.pairs);
  add_gpu_means(values);
  add_sources(values, interval_sources_, names_);
  add_shares(values, interval_sources_, names_);
  metrics_->record("train", r.step, values);
  interval_sources_.clear();
  record_parts(kPartNorms, r.part_norms);
  interval_seconds_ = 0;
  interval_tokens_ = 0;
  interval_steps_ = 0;
  unrecorded_.clear();
}

// Adds the sensors' means over the time since the previous record.
void RunLog::add_gpu_means(Metrics::Values& values) {
  if (!gpu_) return;
  const GpuReading mean = gpu_->take(GpuSamples::Reader::metrics).mean;
  const auto add = [&](const char* name, std::optional<double> value) {
    if (value) values.emplace_back(name, *value);
  };
  add("gpu_watts", mean.watts);
  add("gpu_utilization", mean.utilization);
  add("gpu_sm_mhz", mean.sm_mhz);
  add("gpu_celsius", mean.celsius);
}

// Records values by part of the model, for the last reported step. Writes nothing if `values` is empty.
void RunLog::record_parts(const char* group, const std::vector<double>& values) {
  Metrics::Values named;
  for (std::size_t i = 0; i < values.size(); ++i) named.emplace_back(key_of(trainer_.parts()[i]), values[i]);
  if (!named.empty()) metrics_->record(group, last_.step, named);
}

void RunLog::record_diagnostics(const StepReport& r) {
  record_parts(kUpdateRatios, r.watched.update_ratios);
  const auto record = [&](const char* group, const std::vector<double>& layers) {
    Metrics::Values named;
    for (std::size_t i = 0; i < layers.size(); ++i)
      named.emplace_back(key_of(block_scope(static_cast<std::int64_t>(i))), layers[i]);
    metrics_->record(group, r.step, named);
  };
  record(kEntropies, r.watched.entropies);
  record(kMinEntropies, r.watched.min_entropies);
  if (!r.watched.imbalances.empty()) record(kImbalances, r.watched.imbalances);
  if (r.watched.kept.empty()) return;
  Metrics::Values densities, recalls;
  for (const KeptByLayer& k : r.watched.kept) {
    const std::string name = key_of(block_scope(k.layer));
    densities.emplace_back(name, k.density), recalls.emplace_back(name, k.recall);
  }
  metrics_->record(kDensities, r.step, densities);
  metrics_->record(kRecalls, r.step, recalls);
}

void RunLog::log_fatal_step(const StepReport& bad) {
  unrecorded_.push_back(bad);
  unrecorded_.back().step = trainer_.steps_done() + 1;  // steps_done() does not count a bad step
  for (const StepReport& r : unrecorded_)
    metrics_->record("train", r.step,
                     {{"loss", r.loss}, {"grad_norm", r.norm}, {"lr", r.lr}, {"step_ms", r.seconds * 1e3}});
  unrecorded_.clear();
}

void RunLog::log_rollback() {
  unrecorded_.clear();
  interval_sources_.clear();
  metrics_.emplace(directory_, trainer_.steps_done());
}

void RunLog::log_bad_step(const BadStep& bad) {
  metrics_->record("bad_step", bad.step,
                   {{"loss", bad.loss},
                    {"grad_norm", bad.norm},
                    {"first_sample", bad.first_sample},
                    {"last_sample", bad.end_sample - 1},
                    {"steps_back", bad.step - 1 - trainer_.steps_done()}});
}

void RunLog::log_recomputed_step(const StepReport& bad, const StepReport& good) {
  metrics_->record("bad_step", good.step,
                   {{"loss", bad.loss},
                    {"grad_norm", bad.norm},
                    {"second_loss", good.loss},
                    {"second_grad_norm", good.norm},
                    {"steps_back", std::int64_t{0}}});
}

void RunLog::log_pairs(const Evaluation& e, const std::optional<Evaluation>& average) {
  const std::int64_t step = trainer_.steps_done();
  Metrics::Values values = {{"loss", e.loss}, {"accuracy", e.accuracy}, {"pairs", e.tokens}};
  if (average) values.emplace_back("ema_loss", average->loss);
  add_rewards(values, *e.pairs);
  metrics_->record("validation", step, values);
  print_line(str("step ", step, ": validation loss ", e.loss, ", accuracy ", e.accuracy, ", reward margin ",
                 e.pairs->chosen - e.pairs->rejected, " over ", counted(e.tokens, "pair"),
                 average ? str("; averaged weights: loss ", average->loss) : ""));
}

void RunLog::log_validation(const Evaluation& e, const std::optional<Evaluation>& average, double bytes_per_token) {
  val_loss_ = e.loss;
  const std::int64_t step = trainer_.steps_done();
  if (e.pairs) return log_pairs(e, average);
  const double bits = e.bits_per_byte(bytes_per_token);
  Metrics::Values values = {{"loss", e.loss},
                            {"perplexity", e.perplexity()},
                            {"bits_per_byte", bits},
                            {"accuracy", e.accuracy},
                            {"tokens", e.tokens}};
  if (average) values.emplace_back("ema_loss", average->loss);
  add_sources(values, e.sources, names_);
  metrics_->record("validation", step, values);
  std::string by_source;
  for (const auto& [name, loss] : mean_losses(e.sources, names_)) by_source += str("; ", name, " ", loss);
  print_line(str("step ", step, ": validation loss ", e.loss, ", perplexity ", e.perplexity(), ", ", bits,
                 " bits per byte", masked_ ? str(", accuracy ", e.accuracy) : "", " over ", e.tokens, " tokens",
                 average ? str("; averaged weights: loss ", average->loss) : "", by_source));
}

void RunLog::log_task_results(const std::vector<TaskResult>& results) {
  Metrics::Values values;
  std::string text;
  for (const TaskResult& r : results) {
    text += str(text.empty() ? "" : "; ", r.name);
    for (const auto& [name, value] : r.values) {
      values.emplace_back(r.name + "." + name, value);
      if (!name.ends_with("_stderr")) text += str(" ", name, " ", value);
    }
  }
  metrics_->record("tasks", trainer_.steps_done(), values);
  print_line(str("step ", trainer_.steps_done(), ": ", text));
}

void RunLog::log_save(const SaveOutcome& o, std::int64_t failures_in_a_row, std::optional<double> auto_seconds) {
  Metrics::Values values = {{"seconds", o.seconds},
                            {"stall_seconds", o.stall_seconds},
                            {"waited_seconds", o.waited_seconds},
                            {"bytes", static_cast<std::int64_t>(o.bytes)},
                            {"errors", job_.failed_saves}};
  if (!o.saved()) values.push_back({"error", o.error});
  if (auto_seconds) values.push_back({"auto_seconds", *auto_seconds});
  metrics_->record("checkpoint", o.step, values);
  if (!o.saved())
    return log::error("step ", o.step, " was not saved (consecutive failure ", failures_in_a_row, "): ", o.error);
  log::info("checkpoint of step ", o.step, ": ", bytes_text(o.bytes), " of this process saved in ",
            seconds_text(o.seconds), "; training waited ", seconds_text(o.stall_seconds),
            o.waited_seconds > 0.001 ? str(", ", seconds_text(o.waited_seconds), " of it for the previous save") : "",
            auto_seconds ? "; checkpoints are saved every " + seconds_text(*auto_seconds) : "");
}

void RunLog::log_slow_rank(const SlowRank& s) {
  const double speed = std::round(100 * s.speed) / 100, own = std::round(1e4 * s.seconds) / 10,
               usual = std::round(1e4 * s.usual) / 10;
  metrics_->record(
      "slow_rank", last_.step,
      {{"rank", std::int64_t{s.rank}}, {"speed", speed}, {"what", str(s.what)}, {"ms", own}, {"median_ms", usual}});
  log::warn("rank ", s.rank, " is slow: ", speed, " of the median rank's speed for ", SlowRankDetector::kWindows, " x ",
            Pace::kWindow, " steps; ", s.what, " takes ", own, " ms per step, on the median rank ", usual, " ms");
}

void RunLog::log_slow_gpu(const SlowGpu& s) {
  const auto tenths = [](double v) { return std::round(10 * v) / 10; };
  const double ms = tenths(1e3 * s.seconds), usual_ms = tenths(1e3 * s.usual_seconds), mhz = std::round(s.sm_mhz),
               usual_mhz = std::round(s.usual_mhz);
  const std::string reason = throttle_text(s.throttle);
  metrics_->record("slow_gpu", last_.step,
                   {{"rank", std::int64_t{s.rank}},
                    {"gpu", s.bus},
                    {"sm_mhz", mhz},
                    {"usual_sm_mhz", usual_mhz},
                    {"reason", reason},
                    {"ms", ms},
                    {"usual_ms", usual_ms}});
  log::warn("rank ", s.rank, ": GPU ", s.bus, " became slow: its SM clock is ", mhz, " MHz instead of ", usual_mhz,
            " (", reason.empty() ? "the driver gives no reason" : "lowered by " + reason, "), and a step takes ", ms,
            " ms instead of ", usual_ms, " ms");
}

void RunLog::log_agent_save(std::int64_t step, const AgentSaveOutcome& o) {
  metrics_->record("kept", step,
                   {{"stall_seconds", o.stall_seconds},
                    {"waited_seconds", o.waited_seconds},
                    {"bytes", static_cast<std::int64_t>(o.bytes)}});
  if (!std::exchange(agent_saves_logged_, true))
    log::info("the launcher keeps the state of every ", config_.checkpoint.memory_interval, " steps in memory, ",
              bytes_text(o.bytes), " of this process; training waited ", seconds_text(o.stall_seconds));
}

void RunLog::record_job(const std::string& how, const std::string& error) {
  Metrics::Values values = {{"end", how},
                            {"restarts", job_.restarts},
                            {"failed_saves", job_.failed_saves},
                            {"bad_steps", job_.bad_steps},
                            {"ran_out", job_.ran_out},
                            {"steps_again", job_.steps_again},
                            {"seconds", job_.seconds()},
                            {"restart_seconds_lost", job_.restart_seconds},
                            {"save_seconds_lost", job_.save_seconds},
                            {"bad_step_seconds_lost", job_.bad_step_seconds},
                            {"goodput", job_.goodput()}};
  if (!error.empty()) values.push_back({"error", error});
  metrics_->record("job", trainer_.steps_done(), values);
}

void RunLog::log_failure(const std::string& error) { record_job(kEndFailed, error); }

void RunLog::log_end(TrainEnd end, const TimeSpent& time) {
  if (!unrecorded_.empty()) record_step(last_);  // a stopped run usually ends between two records
  record_job(name_of(end), "");
  log::info("this job: ", job_.text());
  if (last_.step)
    progress_.finish(progress_state(), time);
  else if (end == TrainEnd::finished)
    log::info("nothing left to do: step ", trainer_.steps_done(), " was the last");
}

}  // namespace ring
