#pragma once
// Writes the measurements of a run, as one JSON object per line (metrics.jsonl) and as TensorBoard events. Used by one
// process only.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/files.h"
#include "core/tensorboard.h"

namespace ring {

// Values in records of the group "job" that say how a process ended.
inline constexpr const char *kEndFinished = "finished", *kEndStopped = "stopped", *kEndOutOfTime = "out of time",
                            *kEndFailed = "failed";

// Group of records with the gradient norm of each part of the model.
inline constexpr const char* kPartNorms = "grad_norm";
// Groups of records about watched steps (train.diagnostics_interval), with values by part or by layer of the model.
inline constexpr const char *kUpdateRatios = "update_ratio", *kEntropies = "attention_entropy",
                            *kMinEntropies = "attention_entropy_min", *kDensities = "attention_density",
                            *kRecalls = "attention_recall", *kImbalances = "attention_imbalance";
// Prefixes of values by corpus of a mixture: "loss/code".
// Prefix of values of pairs of answers, as in TRL: "rewards/chosen".
inline constexpr const char* kRewards = "rewards/";
inline constexpr const char *kSourceLoss = "loss/", *kSourceShare = "share/";

class Metrics {
 public:
  using Value = std::variant<double, std::int64_t, std::string>;
  using Values = std::vector<std::pair<std::string, Value>>;

  // Without resumed_step the run is new, and older records are removed. With resumed_step, records of later steps and
  // damaged lines (such as an incomplete last line) are removed. Throws Error if the directory cannot be written.
  explicit Metrics(const std::string& directory, std::optional<std::int64_t> resumed_step = std::nullopt);

  // Writes {"step": 10, "group": "train", "time": <seconds since 1970>, "loss": 2.5, ...}. For TensorBoard see
  // tag_of(). A non-finite number is written as null, and a second value holds its name: "loss": null, "loss_text":
  // "nan". The record is on disk when the call returns. If it cannot be written, warns once; training continues.
  void record(const std::string& group, std::int64_t step, const Values& values);

  // Write only to TensorBoard. write_text() writes a code block. write_hparams() writes the settings by which
  // TensorBoard's HParams tab compares runs.
  void write_text(const std::string& tag, const std::string& text);
  void write_hparams(const std::vector<std::pair<std::string, std::string>>& leaves);

 private:
  void append(const std::string& line);
  void warn_once(const std::string& what);

  std::string file_;
  std::optional<File> lines_;
  std::uint64_t bytes_ = 0;  // bytes of complete lines
  EventWriter events_;
  bool warned_ = false;
};

// Returns the TensorBoard tag of a value: "loss/train" beside "loss/validation", "loss/train/code", "optimizer/lr",
// "optimizer/grad_norm/blocks.3", "attention/entropy/blocks.3", "speed/tokens_per_second", "memory/peak"; values of
// other groups get "group/name".
std::string tag_of(const std::string& group, const std::string& name);

// Removes records after `last_step` and damaged lines from a metrics file, by writing a temporary file and renaming it.
// Returns the number of damaged lines. Does nothing if the file does not exist.
std::int64_t truncate_metrics(const std::string& file, std::int64_t last_step);

}  // namespace ring
