#pragma once
// Text samples for a report: how a run's checkpoints continue the same text, which shows what the model has learned.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ring {

struct SampleOptions {
  std::string prompt;  // if empty, there are no samples
  std::int64_t tokens = 100;
  int threads = 0;  // 0 uses all cores
};

struct CheckpointSample {
  std::optional<std::int64_t> step = {};  // nullopt if the checkpoints could not be listed
  std::string prompt = "", text = "";     // the prompt and its continuation
  std::string problem = "";               // why there is no text; empty if there is a text
};

// Samples from at most eight of the run's remaining checkpoints, oldest to newest, including the first and the last.
// All use the defaults of `generate`, so that samples differ only because of the weights.
std::vector<CheckpointSample> checkpoint_samples(const std::string& run, const SampleOptions&);
// Returns markup; empty if there are no samples.
std::string samples_html(const std::string& run, const std::vector<CheckpointSample>&);

}  // namespace ring
