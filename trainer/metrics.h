#pragma once
// What a run measures, as one JSON object per line (metrics.jsonl) and as TensorBoard events. One process writes it.

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensorboard.h"

namespace ring {

// How a process ended, in its record of the group "job".
inline constexpr const char *kEndFinished = "finished", *kEndStopped = "stopped", *kEndOutOfTime = "out of time",
                            *kEndFailed = "failed";

// The group of records with the gradient's norm by parts of the model.
inline constexpr const char* kPartNorms = "grad_norm";
// Those of steps that are watched (train.watch_interval), by parts and by layers of the model.
inline constexpr const char *kUpdateRatios = "update_ratio", *kEntropies = "attention_entropy",
                            *kLeastEntropies = "attention_entropy_min", *kDensities = "attention_density",
                            *kRecalls = "attention_recall", *kImbalances = "attention_imbalance";
// Beginnings of the names of values by corpus of a mixture: "loss/code".
inline constexpr const char *kSourceLoss = "loss/", *kSourceShare = "share/";

class Metrics {
 public:
  using Value = std::variant<double, std::int64_t, std::string>;
  using Values = std::vector<std::pair<std::string, Value>>;

  // Without a step the run is new and older records go; with one, records of later steps, a torn last line and other
  // damaged lines go, and the rest is kept. Error: the directory cannot be written.
  explicit Metrics(const std::string& directory, std::optional<std::int64_t> resumed_step = std::nullopt);

  // {"step": 10, "group": "train", "time": <seconds since 1970>, "loss": 2.5, ...}; for TensorBoard see tag_of(). What
  // is not finite becomes null with its name beside it: "loss": null, "loss_text": "nan". On disk when the call
  // returns. A disk that cannot take it is warned about once; training goes on.
  void record(const std::string& group, std::int64_t step, const Values& values);

  // For TensorBoard only: shown as a code block; and of a run's settings those that tell runs apart in HParams.
  void text(const std::string& tag, const std::string& text);
  void settings(const std::vector<std::pair<std::string, std::string>>& leaves);

 private:
  void append(const std::string& line);
  void warn_once(const std::string& what);

  std::string file_;
  std::ofstream out_;
  EventWriter events_;
  bool warned_ = false;
};

// Where TensorBoard shows a value: "loss/train" beside "loss/validation", "loss/train/code", "optimizer/lr",
// "optimizer/grad_norm/blocks.3", "attention/entropy/blocks.3", "speed/tokens_per_second", "memory/peak"; of other
// groups "group/name".
std::string tag_of(const std::string& group, const std::string& name);

// Rewrites a file of records without those after `last_step` and without damaged lines, by way of a temporary file and
// a rename. Returns how many lines were damaged. A file that does not exist stays so.
std::int64_t truncate_metrics(const std::string& file, std::int64_t last_step);

}  // namespace ring
