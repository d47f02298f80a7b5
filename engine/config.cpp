#include "engine/config.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "core/byte_size.h"
#include "core/fields.h"
#include "core/yaml.h"
#include "model/architectures.h"
#include "optim/groups.h"

namespace ring {
namespace {

// Returns true if the name, taken as a path, stays inside the folder that it is relative to.
bool stays_below(const std::string& name) {
  const std::filesystem::path path = name;
  return path.is_relative() && std::ranges::find(path, "..") == path.end();
}

constexpr std::int64_t kMinBudget = 2;  // bytes; values up to 1 are a share of the memory
constexpr std::int64_t kMaxHostBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxBufferBytes = std::int64_t{1} << 40;

}  // namespace

void RunConfig::fields(Fields& f) {
  f("name", name, "name of the run", non_empty(), check_text("a name below runs/, without ..", stays_below));
  f("directory", directory, "where its files go; empty = runs/<name>");
  f("init_from", init_from, "a run or checkpoint whose weights (only those) a new run starts from");
  f("seed", seed, "seed of initialisation, data order and dropout",
    in_range(0, std::numeric_limits<std::int64_t>::max()));
  f("threads", threads, "CPU threads per process; 0 = RINGMASTER_THREADS, else all cores", in_range(0, 4096),
    rank_local());
  f("device", device, "where to compute; auto = a GPU where there is one",
    choices<DeviceChoice>(
        {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}),
    rank_local());  // the ranks compare the resolved device instead
  f("deterministic", deterministic, "bit-identical results from run to run");
  f("tuning", tuning,
    "GPUs: how algorithms are chosen: auto (shipped tables, then this user's store), rule, or a file to share",
    rank_local());
  f("tuning_seconds", tuning_seconds,
    "time to measure each of the best few algorithms of a matrix product that no table and no store knows",
    in_range(0.0001, 10));
  f("rates", rates,
    "what plans take the device to sustain: a file that bench calibrate wrote, or h200, h100 or cpu; empty = what is "
    "shipped for the device");
}

namespace {

void memory_fields(TrainConfig& c, Fields& f) {
  f("recompute", c.recompute,
    "activations computed again in the backward: none, those inside of the attention or of the MLP sublayer, all but "
    "each block's input and the attention's output (block), or all but each block's input (full); auto = of each "
    "block, so that the step takes least time within train.memory_budget",
    choices<RecomputeChoice>({{"auto", RecomputeChoice::automatic},
                              {"none", RecomputeChoice::none},
                              {"attention", RecomputeChoice::attention},
                              {"mlp", RecomputeChoice::mlp},
                              {"block", RecomputeChoice::block},
                              {"full", RecomputeChoice::full}}));
  f("memory_budget", c.memory_budget,
    "what train.recompute: auto makes a process's training fit into: bytes, or, up to 1, a share of the device's "
    "memory; 0 = what is free when it starts",
    share_or_bytes(kMinBudget, 1e15));
  f("mlp_chunk", c.mlp_chunk,
    "tokens of a micro-batch that an MLP computes at a time, forward and backward; with recompute mlp or block nothing "
    "in it is longer than that. Changes rounding, as micro_batch does; 0 = all; auto = all where everything fits that "
    "way, else what makes the step fastest, chosen when the run begins and kept",
    in_range(0, kMaxTokensAtOnce), word("auto", kAutoMlpChunk));
  f("activation_offload", c.activation_offload,
    "keep in host memory what blocks save for the backward: it leaves while the next block runs forward and comes back "
    "ahead of its own backward; the last block's stays. true = of all blocks; auto = of the blocks where that takes "
    "less "
    "time than to compute again what does not fit into train.memory_budget, or where nothing else fits; on CPUs, where "
    "both are one memory, only with activation_offload_bytes",
    choices<Switch>({{"auto", Switch::automatic}, {"true", Switch::on}, {"false", Switch::off}}));
  f("activation_offload_bytes", c.activation_offload_bytes,
    "host memory of each process for that; what finds no room stays on the device; 0 = what "
    "the host has room for",
    in_bytes(0, kMaxHostBytes), rank_local());
  f("loss_chunk_bytes", c.loss_chunk_bytes, "logits held at a time; 0 = 32 MiB on CPUs, 2 GiB on GPUs",
    in_bytes(0, kMaxBufferBytes));
}

void bad_step_fields(TrainConfig& c, Fields& f) {
  f("on_bad_step", c.on_bad_step,
    "when loss or gradient norm is not finite or a spike, also when computed again: stop; skip its samples; or go back "
    "to "
    "the newest checkpoint and on from there with the samples after it",
    choices<OnBadStep>({{"stop", OnBadStep::stop}, {"skip", OnBadStep::skip}, {"rollback", OnBadStep::rollback}}));
  f("spike_score", c.spike_score,
    "a loss or gradient norm is a spike when it is above the median of the last 128 steps by so many standard "
    "deviations, "
    "estimated robustly; 0 = nothing finite is",
    in_range(0, 1e6));
  f("most_bad_steps", c.max_bad_steps, "bad steps in bad_step_window after which the next one ends the run",
    in_range(0, 1'000'000));
  f("bad_step_window", c.bad_step_window, "steps over which bad ones are counted", in_range(1, kMaxSteps));
}

}  // namespace

void TrainConfig::fields(Fields& f) {
  f("batch_size", batch_size,
    "sequences per optimizer step, over all processes and micro-batches; as a list, what it is from so many trained "
    "tokens on",
    in_range(1, 1 << 30), by_tokens(batch_sizes));
  f("context", context,
    "tokens of a training sequence: samples of model.context tokens are cut into so many that see nothing of each "
    "other; it must divide model.context. 0 = they are not cut; as a list, what it is from so many trained tokens on",
    in_range(0, 1 << 30), by_tokens(contexts));
  f("micro_batch", micro_batch,
    "sequences per forward pass of a process; 0 = its whole share (of the smallest batch_size); auto = the fastest "
    "that is predicted to fit, chosen "
    "when the run begins and kept",
    in_range(0, 1 << 30), word("auto", kAutoMicroBatch));
  f("steps", steps, "optimizer steps to train; 0 = see tokens, epochs and minutes", in_range(0, kMaxSteps));
  f("tokens", tokens, "tokens to train, rounded up to whole steps; 0 = see steps, epochs and minutes",
    in_range(0, kMaxTokens));
  f("epochs", epochs,
    "how often to see the training split, rounded up to whole steps; of a mixture: as many samples as its corpora have "
    "together. The run records the steps that it comes to; 0 = see steps, tokens and minutes",
    in_range(0, 1e6));
  f("minutes", minutes,
    "training time after which the run ends, resumptions included; alone, the schedule follows the clock; 0 = no limit",
    in_range(0, 1e8));
  f("log_interval", log_interval, "steps between log lines and metrics", in_range(1, kMaxSteps), rank_local());
  f("eval_interval", eval_interval, "steps between validations; 0 = only at the end", in_range(0, kMaxSteps));
  f("eval_tasks", eval_tasks,
    "tasks to evaluate as the run goes on, each NAME=FILE: questions in JSON Lines, see `ringmaster eval --task`",
    check_text("NAME=FILE", [](const std::string& text) { return text.find('=') != std::string::npos; }),
    at_most_items(64));
  f("eval_tasks_interval", eval_tasks_interval,
    "steps between evaluations of eval_tasks, which are also evaluated at the end; 0 = as eval_interval",
    in_range(0, kMaxSteps));
  f("ema", ema,
    "decay of an exponential moving average of the weights, such as 0.999, which eval, generate, serve and export take "
    "with --weights ema; in the first steps it is (1 + step) / (10 + step) where that is less; 0 = none",
    in_range(0, 0.999999));
  f("watch_interval", watch_interval,
    "steps between measurements of how far updates move the weights of each part of the model, of the entropy of each "
    "layer's attention and of what its blocks keep; such a step computes the forward of one micro-batch once more, "
    "with each attention twice; 0 = none",
    in_range(0, kMaxSteps));
  f("z_loss", z_loss, "weight of the squared log-sum-exp in the training loss (PaLM)", in_range(0, 1000));
  f("precision", precision,
    "type of activations and matrix products: bf16, fp32, or fp32 with tf32 products; auto = bf16 on GPUs; CPUs "
    "compute "
    "in fp32 whatever this says",
    choices<PrecisionChoice>({{"auto", PrecisionChoice::automatic},
                              {"bf16", PrecisionChoice::bf16},
                              {"fp32", PrecisionChoice::fp32},
                              {"tf32", PrecisionChoice::tf32}}));
  memory_fields(*this, f);
  f("cuda_graph", cuda_graph,
    "GPUs: replay the step as a CUDA graph, or as several; auto = when launching its kernels takes most of it",
    choices<Switch>({{"auto", Switch::automatic}, {"on", Switch::on}, {"off", Switch::off}}));
  f("bucket_bytes", bucket_bytes,
    "gradient bytes reduced together between processes; 0 = 4 MiB on CPUs, 64 MiB on GPUs",
    in_bytes(0, kMaxBufferBytes));
  bad_step_fields(*this, f);
}

void TrainConfig::validate(std::vector<SettingProblem>& errors) const {
  if ((steps > 0) + (tokens > 0) + (epochs > 0) > 1)
    errors.push_back(str("steps: expected one of train.steps, train.tokens and train.epochs, got ", steps, ", ", tokens,
                         " and ", epochs, ". Set the others to 0"));
}

void Config::fields(Fields& f) {
  f("run", run, "the run and where it computes");
  f("model", model, "the decoder");
  f("data", data, "what it reads");
  f("train", train, "the loop");
  f("optimizer", optimizer, "how gradients become updates");
  f("schedule", schedule, "the learning rate");
  f("checkpoint", checkpoint, "when state is saved");
  f("parallel", parallel, "how the work is shared among the processes of `ringmaster launch`");
}

namespace {

// Token counts of a step and of the run, and step counts, must be exact.
void validate_tokens(const Config& c, std::vector<SettingProblem>& errors) {
  const std::int64_t per_step = c.train.batch_size * c.model.context;  // at most 2^60, by the ranges of both settings
  const std::string step =
      str(c.train.batch_size, " x ", c.model.context, " tokens (train.batch_size x model.context)");
  if (per_step > kMaxTokens) {
    errors.push_back(str("train.batch_size: a step of ", step, " is more than the ", kMaxTokens, " tokens of a run"));
    return;
  }
  const std::int64_t steps = c.train.tokens ? steps_of_tokens(c.train, c.model.context, c.train.tokens) : c.train.steps;
  if (steps > kMaxSteps)
    errors.push_back(str("train.tokens: ", c.train.tokens, " tokens are ", steps, " steps of ", step, ", at most ",
                         kMaxSteps, ": enlarge the steps or lower train.tokens"));
  else if (steps > kMaxTokens / per_step)
    errors.push_back(str(c.train.tokens ? "train.tokens: " : "train.steps: ", steps, " steps of ", step,
                         " are more than the ", kMaxTokens, " tokens that a run can count: lower one of them"));
}

void validate_context(const Config& c, std::vector<SettingProblem>& errors) {
  std::vector<std::int64_t> all;
  for (const TokenChange& change : c.train.contexts) all.push_back(static_cast<std::int64_t>(change.value));
  if (all.empty() && c.train.context) all = {c.train.context};
  for (const std::int64_t context : all)
    if (context < 1 || c.model.context % context)
      return errors.push_back(str("train.context: sequences of ", context,
                                  " tokens do not divide the samples of model.context = ", c.model.context,
                                  " tokens: give divisors of that"));
}

void validate_watch(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.train.watch_interval && c.optimizer.offload == StateOffload::all)
    errors.push_back(
        "train.watch_interval: it compares weights on the device, where optimizer.offload: all does not keep them: set "
        "states or none");
}

void validate_ema(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.train.ema == 0) return;
  if (c.optimizer.master != DType::f32)
    errors.push_back("train.ema: it averages weights in fp32: set optimizer.master: fp32, or leave the average out");
  if (c.optimizer.offload == StateOffload::all)
    errors.push_back(
        "train.ema: it averages weights on the device, where optimizer.offload: all does not keep them: set states or "
        "none");
}

void validate_stages(const Config& c, std::vector<SettingProblem>& errors) {
  if (c.parallel.pp != 1)
    errors.push_back(str("parallel.pp: pipeline stages do not exist yet, so it must be 1, is ", c.parallel.pp,
                         ". Divide the model with parallel.tp, or share it with parallel.zero: 3"));
}

// Parameters and their names follow from the model without its attention (which may need a file) and without its
// vocabulary (which may be the corpus's).
void validate_groups(const Config& c, std::vector<SettingProblem>& errors) {
  constexpr std::int64_t kMaxLayers = 1000;  // naming more layers takes seconds: checked when a run begins
  if (c.optimizer.groups.empty() || c.model.layers > kMaxLayers) return;
  ModelConfig named = c.model;
  named.attention = {};
  named.attention_layers.clear();
  named.vocab_size = 1;
  const std::unique_ptr<Model> model = make_model(named);
  bind_groups(c.optimizer, model->parameters(), errors);
}

}  // namespace

// Otherwise a misspelt word would be taken as the name of a file.
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
  validate_stages(*this, errors);
  validate_groups(*this, errors);
  add_unused_settings(optimizer, errors);
}

namespace {

// Consecutive steps of one size.
struct Stretch {
  std::int64_t per_step, begin, end;  // tokens: of a step; before the first step; after which the size changes
  std::int64_t steps(std::int64_t until) const {
    const std::int64_t tokens = std::max<std::int64_t>(0, std::min(end, until) - begin);
    return tokens / per_step + (tokens % per_step > 0);
  }
};

// Calls fn with each stretch until it returns false. A stretch has whole steps, so it may end beyond later changes of
// size and skip them.
template <class Fn>
void for_stretches(const TrainConfig& c, std::int64_t context, std::int64_t begin, const Fn& fn) {
  for (std::size_t i = 0; i <= c.batch_sizes.size(); ++i) {
    const bool last = i + 1 >= c.batch_sizes.size();
    const Stretch s{batch_size_at(c, begin) * context, begin, last ? kMaxTokens : c.batch_sizes[i + 1].tokens};
    if (!fn(s) || last) return;
    begin += s.steps(s.end) * s.per_step;
  }
}

}  // namespace

std::int64_t steps_of_tokens(const TrainConfig& c, std::int64_t context, std::int64_t tokens, std::int64_t trained) {
  std::int64_t steps = 0;
  for_stretches(c, context, trained, [&](const Stretch& s) {
    steps += s.steps(tokens);
    return s.end < tokens;
  });
  return steps;
}

std::int64_t tokens_of_steps(const TrainConfig& c, std::int64_t context, std::int64_t steps, std::int64_t trained) {
  std::int64_t tokens = 0, left = steps;
  for_stretches(c, context, trained, [&](const Stretch& s) {
    const std::int64_t here = std::min(left, s.steps(s.end));
    tokens += here * s.per_step;
    return (left -= here) > 0;
  });
  return tokens;
}

void check_tokens_at_once(const char* rows_from, std::int64_t rows, std::int64_t context) {
  if (rows <= kMaxTokensAtOnce / context) return;
  fail(rows_from, ": ", rows, " sequences of ", context, " tokens at once are more than the ", kMaxTokensAtOnce,
       " tokens that can be numbered: give at most ", std::max<std::int64_t>(1, kMaxTokensAtOnce / context),
       ", or a shorter context");
}

bool may_offload(const Config& c) {
  if (c.train.activation_offload != Switch::automatic) return c.train.activation_offload == Switch::on;
  return c.run.device == DeviceChoice::cuda || c.train.activation_offload_bytes > 0;
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
                                                "train.watch_interval",
                                                "train.recompute",
                                                "train.memory_budget",
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
                                                "parallel.dp",
                                                "parallel.cp",
                                                "parallel.tp",
                                                "parallel.cp_layout",
                                                "parallel.cp_schedule",
                                                "parallel.cp_keys",
                                                "parallel.cp_prefetch",
                                                "parallel.cp_message_mb",
                                                "parallel.cp_ranks_per_node",
                                                "parallel.zero"};
  return keys;
}

}  // namespace ring
