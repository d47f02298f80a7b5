#pragma once
// The whole settings tree of a run. docs/configuration.md is generated from it.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "core/setting_problem.h"
#include "data/config.h"
#include "model/config.h"
#include "optim/config.h"
#include "parallel/config.h"

namespace ring {

// Tokens of a run: counted exactly also where processes add them up as doubles.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 53;
// Tokens that a kernel sees at once: they are numbered by 32 bits.
inline constexpr std::int64_t kMostTokensAtOnce = (std::int64_t{1} << 31) - 1;

// train.micro_batch: auto, train.mlp_chunk: auto
inline constexpr std::int64_t kAutoMicroBatch = -1;
inline constexpr std::int64_t kAutoMlpChunk = -1;

enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
enum class PrecisionChoice : std::uint8_t { automatic, bf16, fp32, tf32 };
enum class RecomputeChoice : std::uint8_t { automatic, none, attention, mlp, block, full };
enum class Switch : std::uint8_t { automatic, on, off };
enum class OnBadStep : std::uint8_t { stop, skip, rollback };

struct RunConfig {
  std::string name = "run";
  std::string directory;  // empty: runs/<name>
  std::string init_from;
  std::uint64_t seed = 1337;
  std::int64_t threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = true;
  std::string tuning = "auto";  // auto, rule, or the file of a store
  double tuning_seconds = 0.004;
  std::string rates;  // a file or a shipped table; empty: the one of the device
  void fields(Fields&);
  std::string path() const { return directory.empty() ? "runs/" + name : directory; }
};

struct TrainConfig {
  std::int64_t batch_size = 12;  // the largest of the run
  TokenSchedule batch_sizes;     // of steps that begin after so many tokens; empty: all have batch_size
  std::int64_t context = 0;      // the largest of the run; 0: model.context
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
  std::int64_t watch_interval = 0;
  double z_loss = 0;
  PrecisionChoice precision = PrecisionChoice::automatic;
  RecomputeChoice recompute = RecomputeChoice::automatic;
  double memory_budget = 0;
  std::int64_t mlp_chunk = 0;
  Switch activation_offload = Switch::automatic;
  std::int64_t activation_offload_bytes = 0;
  std::int64_t loss_chunk_bytes = 0;
  Switch cuda_graph = Switch::automatic;
  std::int64_t bucket_bytes = 0;
  OnBadStep on_bad_step = OnBadStep::stop;
  double spike_score = 0;
  std::int64_t most_bad_steps = 3;
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
  void fields(Fields&);
  void validate(std::vector<SettingProblem>& errors) const;
};

// Whether metrics have a record of the step.
inline bool logs_step(const TrainConfig& c, std::int64_t step) { return step % c.log_interval == 0 || step == c.steps; }
// The size of a step before which so many tokens were trained.
inline std::int64_t batch_size_at(const TrainConfig& c, std::int64_t tokens) {
  return value_at(c.batch_sizes, tokens, c.batch_size);
}
// 0: samples are not cut.
inline std::int64_t context_at(const TrainConfig& c, std::int64_t tokens) {
  return value_at(c.contexts, tokens, c.context);
}
// From `trained` tokens on: how many steps it takes until there are `tokens`, rounded up, and how many tokens so many
// steps have.
std::int64_t steps_of_tokens(const TrainConfig&, std::int64_t context, std::int64_t tokens, std::int64_t trained = 0);
std::int64_t tokens_of_steps(const TrainConfig&, std::int64_t context, std::int64_t steps, std::int64_t trained = 0);
// Error, which names `rows_from`, the setting or option that asked for so many rows: more tokens than
// kMostTokensAtOnce.
void check_tokens_at_once(const char* rows_from, std::int64_t rows, std::int64_t context);

// Whether blocks may move their activations to the host, as far as it has room. config: resolved.
bool may_offload(const Config&);
// Whether states on the host take of the device what a step leaves of its memory.
bool chooses_staging(const Config&);

// Keys that may differ between a run and its resumption: they change no number of the training.
const std::vector<std::string>& keys_free_to_change();

}  // namespace ring
