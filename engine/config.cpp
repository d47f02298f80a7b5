#include "engine/config.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "core/byte_size.h"
#include "core/checked.h"
#include "core/fields.h"
#include "core/yaml.h"
#include "model/architectures.h"
#include "optim/groups.h"

namespace ring {
namespace {

// Returns true if the name, taken as a path, stays inside the folder that it is relative to.
bool stays_below(const std::string& name) {
  const std::filesystem::path given = name, path = given.lexically_normal();
  return path.is_relative() && path != "." && path != "./" && std::ranges::find(given, "..") == given.end();
}

constexpr std::int64_t kMinBudget = 2;  // in bytes; smaller values are shares of the memory
constexpr std::int64_t kMaxHostBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxBufferBytes = std::int64_t{1} << 40;

}  // namespace

void RunConfig::fields(Fields& f) {
  f("name", name, "name of the run", non_empty(), check_text("a name below runs/, without ..", stays_below));
  f("directory", directory, "directory of the run's files; empty = runs/<name>");
  f("init_from", init_from, "run or checkpoint from which a new run takes its initial weights, and nothing else");
  f("seed", seed, "seed for initialisation, data order and dropout",
    in_range(0, std::numeric_limits<std::int64_t>::max()));
  f("threads", threads, "CPU threads per process; 0 = RINGMASTER_THREADS, else all cores", in_range(0, 4096),
    rank_local());
  f("device", device, "device to compute on; auto = a GPU if there is one, else the CPU",
    choices<DeviceChoice>(
        {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}),
    rank_local());  // the ranks compare the resolved device instead
  f("deterministic", deterministic, "bit-identical results from run to run");
  f("tuning", tuning, "how to choose GPU algorithms: auto, rule, or a shared .yaml file", rank_local(),
    docs_page("gpu.md#choices-of-algorithms"));
  f("tuning_seconds", tuning_seconds,
    "seconds to measure each of the best few algorithms for a matrix product that is in no table or store",
    in_range(0.0001, 10));
  f("rates", rates, "device rates that plans assume: h200, h100, cpu, or a file; empty = those of the device",
    docs_page("memory.md#rates-of-your-machine"));
}

namespace {

void precision_fields(TrainConfig& c, Fields& f) {
  f("precision", c.precision,
    "type of activations and GEMMs: bf16, tf32 or fp32; auto = bf16 on GPUs; CPUs compute in fp32",
    choices<PrecisionChoice>({{"auto", PrecisionChoice::automatic},
                              {"bf16", PrecisionChoice::bf16},
                              {"fp32", PrecisionChoice::fp32},
                              {"tf32", PrecisionChoice::tf32}}),
    docs_page("gpu.md#types"));
  Choices<std::string> formats{{{"auto", "auto"}, {"bf16", "bf16"}}};
  for (const auto& [name, make] : linear_formats()) formats.names.emplace_back(name, name);
  f("linears", c.linears,
    "operands of the GEMMs in blocks: bf16, fp8_blocks, or fp8_tensor, which is faster; auto = bf16", formats,
    docs_page("fp8.md#when-to-use-it"));
  f("linears_except", c.linears_except, "names of weights, with * and ?, whose layers train.linears leaves unchanged",
    at_most_items(1024), docs_page("fp8.md#when-to-use-it"));
  f("swiglu_inputs", c.swiglu_inputs,
    "gate and up of an MLP with FP8 layers: auto = as train.precision; fp8 = rounded and saved in e4m3",
    choices<SwiGluInputs>({{"auto", SwiGluInputs::automatic}, {"fp8", SwiGluInputs::fp8}}),
    docs_page("fp8.md#gate-and-up-in-fp8"));
}

void memory_fields(TrainConfig& c, Fields& f) {
  f("recompute", c.recompute,
    "what the backward pass recomputes: nothing, a sublayer, most of a block, or chosen per block (auto)",
    choices<RecomputeChoice>({{"auto", RecomputeChoice::automatic},
                              {"none", RecomputeChoice::none},
                              {"attention", RecomputeChoice::attention},
                              {"mlp", RecomputeChoice::mlp},
                              {"block", RecomputeChoice::block},
                              {"full", RecomputeChoice::full}}),
    docs_page("memory.md#how-a-run-fits-itself-into-memory"));
  f("memory_budget", c.memory_budget,
    "memory for recompute: auto, in bytes or a share up to 1; 0 = what is free at the start",
    share_or_bytes(kMinBudget, 1e15), docs_page("memory.md#how-a-run-fits-itself-into-memory"));
  f("mlp_chunk", c.mlp_chunk,
    "tokens that an MLP processes at a time; 0 = all; auto = all if that fits, else the fastest",
    in_range(0, kMaxTokensAtOnce), word("auto", kAutoMlpChunk), docs_page("memory.md#settings-that-matter"));
  f("sequence_chunk", c.sequence_chunk,
    "tokens of a sequence computed at a time; 0 = all; auto = all if that fits, else the most that fit",
    in_range(0, kMaxTokensAtOnce), word("auto", kAutoSequenceChunk), docs_page("memory.md#sequences-in-chunks"));
  f("activation_offload", c.activation_offload,
    "keep saved activations in host memory: true = of all blocks, auto = where it is faster",
    choices<Switch>({{"auto", Switch::automatic}, {"true", Switch::on}, {"false", Switch::off}}),
    docs_page("memory.md#on-the-host"));
  f("activation_offload_bytes", c.activation_offload_bytes,
    "host memory per process for offloaded activations; 0 = as much as the host can hold",
    bytes_in_range(0, kMaxHostBytes), rank_local(), docs_page("memory.md#on-the-host"));
  f("loss_chunk_bytes", c.loss_chunk_bytes, "bytes of logits held at a time; 0 = 32 MiB on CPUs, 2 GiB on GPUs",
    bytes_in_range(0, kMaxBufferBytes));
}

void bad_step_fields(TrainConfig& c, Fields& f) {
  f("on_bad_step", c.on_bad_step,
    "if loss or gradient norm is a spike or not finite: stop, skip the samples, or roll back",
    choices<OnBadStep>({{"stop", OnBadStep::stop}, {"skip", OnBadStep::skip}, {"rollback", OnBadStep::rollback}}),
    docs_page("when_it_fails.md#bad-steps"));
  f("spike_deviations", c.spike_deviations,
    "standard deviations above the recent median that make a value a spike; 0 = none", in_range(0, 1e6),
    docs_page("when_it_fails.md#bad-steps"));
  f("max_bad_steps", c.max_bad_steps, "bad steps allowed within bad_step_window; the next one ends the run",
    in_range(0, 1'000'000));
  f("bad_step_window", c.bad_step_window, "steps over which bad steps are counted", in_range(1, kMaxSteps));
}

}  // namespace

void TrainConfig::fields(Fields& f) {
  f("batch_size", batch_size, "sequences per optimizer step over all processes; a list changes it by tokens trained",
    in_range(1, 1 << 30), by_tokens(batch_sizes), docs_page("training.md#batch-sizes-that-change"));
  f("context", context,
    "tokens per training sequence, a divisor of model.context; 0 = that; a list changes it by tokens",
    in_range(0, 1 << 30), by_tokens(contexts), docs_page("training.md#sequences-that-grow"));
  f("micro_batch", micro_batch,
    "sequences per forward pass of a process; 0 = its whole share; auto = the fastest that fits", in_range(0, 1 << 30),
    word("auto", kAutoMicroBatch), docs_page("memory.md#settings-that-matter"));
  f("steps", steps, "optimizer steps to train; 0 = set by tokens, epochs or minutes", in_range(0, kMaxSteps));
  f("tokens", tokens, "tokens to train, rounded up to whole steps; 0 = set by steps, epochs or minutes",
    in_range(0, kMaxTokens));
  f("epochs", epochs, "passes over the training split, rounded up to whole steps; 0 = set by steps, tokens or minutes",
    in_range(0, 1e6), docs_page("training.md#settings"));
  f("minutes", minutes, "training time after which the run ends, over all resumptions; 0 = no limit", in_range(0, 1e8),
    docs_page("training.md#settings"));
  f("log_interval", log_interval, "steps between log lines and metrics", in_range(1, kMaxSteps), rank_local());
  f("eval_interval", eval_interval, "steps between validations; 0 = only at the end", in_range(0, kMaxSteps));
  f("eval_tasks", eval_tasks, "tasks to evaluate during training: NAME=FILE, with questions in JSON Lines",
    check_text("NAME=FILE", [](const std::string& text) { return text.find('=') != std::string::npos; }),
    at_most_items(64), docs_page("evaluation.md#while-a-run-trains"));
  f("eval_tasks_interval", eval_tasks_interval,
    "steps between evaluations of eval_tasks, which also run at the end; 0 = eval_interval", in_range(0, kMaxSteps));
  f("ema", ema, "decay of a moving average of the weights, such as 0.999; 0 = no average", in_range(0, 0.999999),
    docs_page("training.md#averaged-weights"));
  f("diagnostics_interval", diagnostics_interval,
    "steps between measurements of updates, attention entropy and kept attention; 0 = none", in_range(0, kMaxSteps),
    docs_page("training.md#metrics"));
  f("z_loss", z_loss, "weight of the squared log-sum-exp in the training loss (PaLM)", in_range(0, 1000));
  precision_fields(*this, f);
  memory_fields(*this, f);
  f("cuda_graph", cuda_graph,
    "GPUs: replay the step as one or more CUDA graphs; auto = if kernel launches take most of its time",
    choices<Switch>({{"auto", Switch::automatic}, {"on", Switch::on}, {"off", Switch::off}}));
  f("bucket_bytes", bucket_bytes,
    "bytes of gradients that processes reduce together; 0 = 4 MiB on CPUs, 64 MiB on GPUs",
    bytes_in_range(0, kMaxBufferBytes));
  bad_step_fields(*this, f);
}

void TrainConfig::validate(std::vector<SettingProblem>& errors) const {
  if ((steps > 0) + (tokens > 0) + (epochs > 0) > 1)
    errors.push_back(str("steps: expected one of train.steps, train.tokens and train.epochs, got ", steps, ", ", tokens,
                         " and ", epochs, ". Set the others to 0"));
}

void Config::fields(Fields& f) {
  f("run", run, "the run, its directory and its device");
  f("model", model, "the decoder");
  f("data", data, "training data");
  f("train", train, "the training loop");
  f("optimizer", optimizer, "how gradients update the weights");
  f("schedule", schedule, "the learning-rate schedule");
  f("checkpoint", checkpoint, "when the training state is saved");
  f("parallel", parallel, "how the processes of `ringmaster launch` share the work; `auto` chooses cp, tp and zero",
    word("auto", kAutoDegree));
  f("preference", preference, "training on pairs of chosen and rejected answers");
}

namespace {

// Token counts of a step and of the run, and step counts, must be represented exactly.
void validate_tokens(const Config& c, std::vector<SettingProblem>& errors) {
  const std::int64_t per_step = c.train.batch_size * c.model.context;  // at most 2^60, by the ranges of both settings
  const std::string step =
      str(c.train.batch_size, " x ", c.model.context, " tokens (train.batch_size x model.context)");
  if (per_step > kMaxTokens) {
    errors.push_back(
        str("train.batch_size: a step of ", step, " exceeds the limit of ", kMaxTokens, " tokens per run"));
    return;
  }
  const std::int64_t steps = c.train.tokens ? steps_of_tokens(c.train, c.model.context, c.train.tokens) : c.train.steps;
  if (steps > kMaxSteps)
    errors.push_back(str("train.tokens: ", c.train.tokens, " tokens need ", steps, " steps of ", step,
                         ", but a run has at most ", kMaxSteps, ". Enlarge the steps or lower train.tokens"));
  else if (steps > kMaxTokens / per_step)
    errors.push_back(str(c.train.tokens ? "train.tokens: " : "train.steps: ", steps, " steps of ", step,
                         " exceed the limit of ", kMaxTokens, " tokens per run. Lower one of them"));
}

void validate_context(const Config& c, std::vector<SettingProblem>& errors) {
  std::vector<std::int64_t> all;
  for (const TokenChange& change : c.train.contexts) all.push_back(static_cast<std::int64_t>(change.value));
  if (all.empty() && c.train.context) all = {c.train.context};
  for (const std::int64_t context : all)
    if (context < 1 || c.model.context % context)
      return errors.push_back(str("train.context: expected a divisor of model.context, got ", context,
                                  ", which does not divide ", c.model.context));
}

// Adds a problem for each setting that needs the values on the device although optimizer.offload keeps them on the
// host. With `weights`, also refuses linear formats and pipeline stages: their weights cannot be copied part by part.
void validate_offload(const Config& c, std::vector<SettingProblem>& errors) {
  const std::string setting = str("optimizer.offload: ", to_string(c.optimizer.offload));
  const auto needs_values = [&](const char* key) {
    errors.push_back(str(key, ": requires the weights on the device, but ", setting, " keeps them on the host. Set ",
                         "optimizer.offload to states or none"));
  };
  if (c.optimizer.offload < StateOffload::all) return;
  if (c.train.ema > 0) needs_values("train.ema");
  if (c.train.diagnostics_interval) needs_values("train.diagnostics_interval");
  if (c.parallel.local_steps > 0) needs_values("parallel.local_steps");
  if (c.optimizer.offload < StateOffload::weights) return;
  if (linear_formats().contains(c.train.linears))
    errors.push_back(str(setting, " supports train.linears: bf16, but it is ", c.train.linears,
                         ". Set it to bf16, or optimizer.offload to all"));
  if (c.parallel.pp > 1)
    errors.push_back(str(setting, " does not support pipeline stages, but parallel.pp is ", c.parallel.pp,
                         ". Set optimizer.offload to all, or parallel.pp to 1"));
}

void validate_watch(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.train.diagnostics_interval && c.train.sequence_chunk > 0 && c.train.sequence_chunk < c.model.context)
    errors.push_back(
        "train.diagnostics_interval: measures attention over whole sequences, but train.sequence_chunk computes them "
        "in chunks. Set one of them to 0");
}

void validate_ema(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.train.ema == 0) return;
  if (c.optimizer.master != DType::f32)
    errors.push_back(
        "train.ema: requires optimizer.master: fp32, the type in which weights are averaged. Set it, or leave "
        "train.ema out");
}

void validate_islands(const Config& c, std::vector<SettingProblem>& errors) {
  const ParallelConfig& p = c.parallel;
  const bool several = p.islands != 1;  // 0 is one per node
  const bool length = c.train.steps > 0 || c.train.tokens > 0 || c.train.epochs > 0;
  if (several && p.local_steps == 0)
    errors.push_back(str("parallel.islands: ", p.islands, ": islands combine their weights every parallel.local_steps ",
                         "steps, but that is 0. Set it, for example to 30, or use parallel.dp instead of islands"));
  if (several && (p.is_automatic() || !p.chosen.empty()))
    errors.push_back(str("parallel.islands: ", p.islands,
                         ": islands do not support auto for parallel.cp, .tp and .zero. ", "Set them to numbers",
                         p.chosen.empty() ? "" : ", and parallel.chosen to []"));
  if (several && p.compress != GradientCompression::none)
    errors.push_back(str("parallel.islands: ", p.islands,
                         ": islands send weights, not gradients, and do not support parallel.compress inside an ",
                         "island. Set parallel.compress: none, and parallel.outer_bits to 8, 4 or 2"));
  if (several && c.train.on_bad_step == OnBadStep::rollback)
    errors.push_back(str("parallel.islands: ", p.islands,
                         ": an island cannot roll back alone, but train.on_bad_step is ",
                         "rollback. Set train.on_bad_step to skip or stop"));
  if (several && !length)
    errors.push_back(str("parallel.islands: ", p.islands,
                         ": islands need the same learning-rate schedule, but without a fixed number ",
                         "of steps it follows each island's speed. Set train.steps, .tokens or .epochs"));
  if (p.local_steps == 0) return;
  if (p.outer_fragments > p.local_steps)
    errors.push_back(str("parallel.outer_fragments: ", p.outer_fragments,
                         " fragments are combined at different steps, ", "but parallel.local_steps is ", p.local_steps,
                         ". Set parallel.outer_fragments to at most ", p.local_steps));
  if (p.outer_delay > 0 && p.islands <= 1)
    errors.push_back(str("parallel.outer_delay: ", p.outer_delay,
                         " hides the messages between islands, but parallel.islands is ", p.islands,
                         p.islands == 0 ? ", which is one island on one node" : "", ". Set parallel.outer_delay: 0"));
  if (c.train.ema > 0)
    errors.push_back(
        "parallel.local_steps: does not support train.ema. Leave train.ema out: checkpoints hold the outer weights, "
        "which average over islands and steps");
  if (c.optimizer.master != DType::f32)
    errors.push_back(
        "parallel.local_steps: weights are combined in fp32, which requires optimizer.master: fp32. Set it to fp32");
}

// Refuses settings that pipeline stages do not support yet. parallel/plan.cpp refuses layouts and models.
void validate_stages(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.parallel.pp == 1) return;
  const std::string setting = str("parallel.pp: ", c.parallel.pp);
  if (c.parallel.is_automatic())
    errors.push_back(setting +
                     " needs fixed degrees, but some of them are `auto`. Set parallel.cp, .tp and .zero to "
                     "numbers");
  if (linear_formats().contains(c.train.linears))
    errors.push_back(str(setting, " supports train.linears: bf16, but it is ", c.train.linears, ". Set it to bf16"));
  if (c.train.activation_offload == Switch::on)
    errors.push_back(setting +
                     " keeps the activations of several micro-batches on the device, but "
                     "train.activation_offload is true. Set it to auto or false");
  if (c.train.diagnostics_interval)
    errors.push_back(setting +
                     " does not support train.diagnostics_interval, which measures attention over the whole "
                     "model. Set train.diagnostics_interval: 0");
}

// The parameters and their names can be derived from the model without its attention (which may need a file) and
// without its vocabulary (which may be taken from the corpus).
void validate_parameters(const Config& c, std::vector<SettingProblem>& errors) {
  constexpr std::int64_t kMaxLayers = 1000;  // naming more layers takes seconds, so they are checked when a run starts
  const bool plain = !linear_formats().contains(c.train.linears) && c.train.linears_except.empty() &&
                     c.train.swiglu_inputs == SwiGluInputs::automatic;
  if ((c.optimizer.groups.empty() && plain) || c.model.layers > kMaxLayers) return;
  ModelConfig named = c.model;
  named.attention = {};
  named.attention_layers.clear();
  named.vocab_size = 1;
  const std::unique_ptr<Model> model = make_model(named);
  bind_groups(c.optimizer, model->parameters(), errors);
  bind_linears(*model, linears_of(c.train), narrow<int>(std::max<std::int64_t>(1, c.parallel.tp)), errors);
}

// Adds a problem for each setting that training on pairs of answers does not support.
void validate_preference(const Config& c, std::vector<SettingProblem>& errors) {
  if (!c.preference.on()) return;
  const auto refuse = [&](bool wrong, const char* key, const char* remedy) {
    if (wrong) errors.push_back(str(key, ": is not supported with preference.loss. ", remedy));
  };
  const bool rows = c.data.packing.documents && c.data.packing.best_fit > 0 && c.data.packing.align == 1;
  if (!rows)
    errors.push_back(
        "data.packing: preference.loss requires whole pairs in samples. Set data.packing: {documents: true, best_fit: "
        "1024}, without align");
  refuse(c.data.mixture.size() > 1, "data.mixture", "Prepare one corpus from all files, and set data.path");
  refuse(c.train.context != 0, "train.context", "Leave it out");
  refuse(c.train.sequence_chunk != 0, "train.sequence_chunk", "Set it to 0");
  refuse(c.train.z_loss != 0, "train.z_loss", "Set it to 0");
  refuse(c.parallel.pp_slices > 1, "parallel.pp_slices", "Set it to 1");
  refuse(c.parallel.local_steps > 0, "parallel.local_steps", "Set it to 0");
  const PreferenceLoss loss = c.preference.loss;
  if (c.preference.label_smoothing > 0 && loss != PreferenceLoss::dpo && loss != PreferenceLoss::simpo)
    errors.push_back("preference.label_smoothing: has no effect with this preference.loss. Set it to 0, or use dpo");
}

}  // namespace

// Rejects misspelt words, which would otherwise be taken as file names.
void validate_tuning(const RunConfig& run, std::vector<SettingProblem>& errors) {
  if (run.tuning == "auto" || run.tuning == "rule" || run.tuning.ends_with(".yaml")) return;
  errors.push_back(str("run.tuning: expected auto, rule or the name of a .yaml file, got '", shown(run.tuning), "'"));
}

void Config::validate(std::vector<SettingProblem>& errors) const {
  validate_tuning(run, errors);
  validate_tokens(*this, errors);
  validate_context(*this, errors);
  validate_ema(*this, errors);
  validate_watch(*this, errors);
  validate_islands(*this, errors);
  validate_stages(*this, errors);
  validate_offload(*this, errors);
  validate_parameters(*this, errors);
  validate_preference(*this, errors);
  add_unused_settings(optimizer, errors);
}

namespace {

// Consecutive steps with the same batch size.
struct BatchSizePeriod {
  // In tokens: size of a step, trained tokens at the start, and trained tokens at which the batch size changes.
  std::int64_t per_step, begin, end;
  std::int64_t steps(std::int64_t until) const {
    const std::int64_t tokens = std::max<std::int64_t>(0, std::min(end, until) - begin);
    return tokens / per_step + (tokens % per_step > 0);
  }
};

// Calls fn for each period until fn returns false. A period consists of whole steps, so its last step may extend beyond
// further changes of the batch size, which are then skipped.
template <class Fn>
void for_batch_size_periods(const TrainConfig& c, std::int64_t context, std::int64_t begin, const Fn& fn) {
  for (std::size_t i = 0; i <= c.batch_sizes.size(); ++i) {
    const bool last = i + 1 >= c.batch_sizes.size();
    const BatchSizePeriod s{batch_size_at(c, begin) * context, begin, last ? kMaxTokens : c.batch_sizes[i + 1].tokens};
    if (!fn(s) || last) return;
    begin += s.steps(s.end) * s.per_step;
  }
}

}  // namespace

std::int64_t steps_of_tokens(const TrainConfig& c, std::int64_t context, std::int64_t tokens,
                             std::int64_t trained_tokens) {
  std::int64_t steps = 0;
  for_batch_size_periods(c, context, trained_tokens, [&](const BatchSizePeriod& s) {
    steps += s.steps(tokens);
    return s.end < tokens;
  });
  return steps;
}

std::int64_t tokens_of_steps(const TrainConfig& c, std::int64_t context, std::int64_t steps,
                             std::int64_t trained_tokens) {
  std::int64_t tokens = 0, left = steps;
  for_batch_size_periods(c, context, trained_tokens, [&](const BatchSizePeriod& s) {
    const std::int64_t here = std::min(left, s.steps(s.end));
    tokens += here * s.per_step;
    return (left -= here) > 0;
  });
  return tokens;
}

void check_tokens_at_once(const char* rows_option, std::int64_t rows, std::int64_t context) {
  if (rows <= kMaxTokensAtOnce / context) return;
  fail(rows_option, ": ", rows, " sequences of ", context, " tokens at once exceed the limit of ", kMaxTokensAtOnce,
       " tokens. Set at most ", std::max<std::int64_t>(1, kMaxTokensAtOnce / context), ", or a shorter context");
}

LinearsConfig linears_of(const TrainConfig& c) {
  // train.ema averages all weights and reads their values on the device, so with it none are encoded.
  return {c.linears, c.linears_except, c.swiglu_inputs == SwiGluInputs::fp8, c.ema == 0};
}

bool may_offload(const Config& c) {
  if (c.parallel.pp > 1) return false;
  if (c.train.activation_offload != Switch::automatic) return c.train.activation_offload == Switch::on;
  return c.run.device == DeviceChoice::cuda || c.train.activation_offload_bytes > 0;
}

bool allows_offload(const Config& given, StateOffload offload) {
  Config c = given;
  c.optimizer.offload = offload;
  std::vector<SettingProblem> problems;
  validate_offload(c, problems);
  return problems.empty();
}

bool chooses_staging(const Config& c) {
  return c.optimizer.offload != StateOffload::none && c.optimizer.offload_staging_bytes == kAutoStaging;
}

const std::vector<std::string>& keys_free_to_change() {
  static const std::vector<std::string> keys = {"run.name",
                                                "run.directory",
                                                "run.init_from",
                                                "train.minutes",
                                                "train.log_interval",
                                                "train.eval_interval",
                                                "train.eval_tasks",
                                                "train.eval_tasks_interval",
                                                "train.ema",
                                                "train.diagnostics_interval",
                                                "train.recompute",
                                                "train.memory_budget",
                                                "train.sequence_chunk",
                                                "train.activation_offload",
                                                "train.activation_offload_bytes",
                                                "train.cuda_graph",
                                                "optimizer.offload",
                                                "optimizer.offload_chunk_bytes",
                                                "optimizer.offload_staging_bytes",
                                                "run.tuning_seconds",
                                                "run.rates",
                                                "train.bucket_bytes",
                                                "data.path",
                                                "data.prefetch",
                                                "data.validation_batches",
                                                "checkpoint",
                                                "parallel.islands",
                                                "parallel.dp",
                                                "parallel.cp",
                                                "parallel.tp",
                                                "parallel.pp",
                                                "parallel.pp_order",
                                                "parallel.pp_parts",
                                                "parallel.pp_slices",
                                                "parallel.pp_division",
                                                "parallel.cp_layout",
                                                "parallel.cp_schedule",
                                                "parallel.cp_keys",
                                                "parallel.cp_prefetch",
                                                "parallel.cp_message_bytes",
                                                "parallel.cp_ranks_per_node",
                                                "parallel.zero",
                                                "parallel.chosen"};
  return keys;
}

}  // namespace ring
