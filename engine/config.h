#pragma once
// All settings of a run. docs/configuration.md is generated from them.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "core/setting_problem.h"
#include "data/config.h"
#include "engine/preference.h"
#include "model/config.h"
#include "model/linear_formats.h"
#include "optim/config.h"
#include "parallel/config.h"

namespace ring {

// Maximum number of tokens of a run: a double counts them exactly, and processes add up token counts as doubles.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 53;
// Maximum number of tokens of one kernel call: kernels index tokens with 32 bits.
inline constexpr std::int64_t kMaxTokensAtOnce = (std::int64_t{1} << 31) - 1;

// Values that represent train.micro_batch: auto, train.mlp_chunk: auto and train.sequence_chunk: auto.
inline constexpr std::int64_t kAutoMicroBatch = -1;
inline constexpr std::int64_t kAutoMlpChunk = -1;
inline constexpr std::int64_t kAutoSequenceChunk = -1;

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
enum class PrecisionChoice : std::uint8_t { automatic, bf16, fp32, tf32 };
enum class RecomputeChoice : std::uint8_t { automatic, none, attention, mlp, block, full };
enum class SwiGluInputs : std::uint8_t { automatic, fp8 };
enum class Switch : std::uint8_t { automatic, on, off };
enum class OnBadStep : std::uint8_t { stop, skip, rollback };

struct RunConfig {
  std::string name = "run";
  std::string directory;  // if empty, runs/<name>
  std::string init_from;
  std::uint64_t seed = 1337;
  std::int64_t threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = true;
  std::string tuning = "auto";  // auto, rule, or the path of a tuning store
  double tuning_seconds = 0.004;
  std::string rates;  // file or name of a shipped table; if empty, the device's table is used
  void fields(Fields&);
  std::string path() const { return directory.empty() ? "runs/" + name : directory; }
};

struct TrainConfig {
  std::int64_t batch_size = 12;  // sequences; the maximum if batch_sizes is given
  // Batch sizes by number of tokens trained before the step. If empty, all steps have batch_size.
  TokenSchedule batch_sizes;
  std::int64_t context = 0;  // maximum tokens of a sequence during the run; 0 means model.context
  TokenSchedule contexts;
  std::int64_t micro_batch = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double epochs = 0;
  double minutes = 0;
  std::int64_t log_interval = 10;
  std::int64_t eval_interval = 250;
  std::vector<std::string> eval_tasks;
  std::int64_t eval_tasks_interval = 0;
  double ema = 0;
  std::int64_t diagnostics_interval = 0;
  double z_loss = 0;
  PrecisionChoice precision = PrecisionChoice::automatic;
  std::string linears = "auto";  // auto, bf16 or one of linear_formats()
  std::vector<std::string> linears_except;
  SwiGluInputs swiglu_inputs = SwiGluInputs::automatic;
  RecomputeChoice recompute = RecomputeChoice::automatic;
  double memory_budget = 0;
  std::int64_t mlp_chunk = 0;
  std::int64_t sequence_chunk = 0;
  Switch activation_offload = Switch::automatic;
  std::int64_t activation_offload_bytes = 0;
  std::int64_t loss_chunk_bytes = 0;
  Switch cuda_graph = Switch::automatic;
  std::int64_t bucket_bytes = 0;
  OnBadStep on_bad_step = OnBadStep::stop;
  double spike_deviations = 0;
  std::int64_t max_bad_steps = 3;
  std::int64_t bad_step_window = 1000;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
  PreferenceConfig preference;
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

// Returns true if metrics are recorded for this step.
inline bool logs_step(const TrainConfig& c, std::int64_t step) { return step % c.log_interval == 0 || step == c.steps; }
// Returns the batch size of a step that begins after `tokens` trained tokens.
inline std::int64_t batch_size_at(const TrainConfig& c, std::int64_t tokens) {
  return value_at(c.batch_sizes, tokens, c.batch_size);
}
// Returns the context of a step that begins after `tokens` trained tokens; 0 if samples are not shortened.
inline std::int64_t context_at(const TrainConfig& c, std::int64_t tokens) {
  return value_at(c.contexts, tokens, c.context);
}
// Returns how many steps take a run from `trained_tokens` tokens to at least `tokens`.
std::int64_t steps_of_tokens(const TrainConfig&, std::int64_t context, std::int64_t tokens,
                             std::int64_t trained_tokens = 0);
// Returns on how many tokens a run trains in `steps` steps after the first `trained_tokens` tokens.
std::int64_t tokens_of_steps(const TrainConfig&, std::int64_t context, std::int64_t steps,
                             std::int64_t trained_tokens = 0);
// Throws Error if rows * context exceeds kMaxTokensAtOnce. rows_option: name of the setting or option that determines
// `rows`, for the message.
void check_tokens_at_once(const char* rows_option, std::int64_t rows, std::int64_t context);

// Returns the format of the linear layers (model/linear_formats.h).
LinearsConfig linears_of(const TrainConfig&);

// Returns true if blocks may offload activations, as far as host memory allows. Always false for pipeline stages.
// config: resolved.
bool may_offload(const Config&);
// Returns true if the other settings allow this value of optimizer.offload.
bool allows_offload(const Config&, StateOffload);
// Returns true if the staging memory of optimizer.offload is chosen automatically: then it gets the device memory that
// a step leaves free.
bool chooses_staging(const Config&);

// Returns the keys that may be changed when a run is resumed: they do not affect the results of training.
const std::vector<std::string>& keys_free_to_change();

}  // namespace ring
