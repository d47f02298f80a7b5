#pragma once
// How the checkpoints of a run go on after the same text, in a report: what the model has learned from one to the next.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ring {

struct SampleOptions {
  std::string prompt;  // empty: no samples
  std::int64_t tokens = 100;
  int threads = 0;  // 0: as the machine has
};

struct CheckpointSample {
  std::optional<std::int64_t> step = {};  // nothing: the checkpoints could not be listed
  std::string prompt = "", text = "";     // what it goes on after, and how
  std::string problem = "";               // instead, where the checkpoint cannot be read
};

// At most eight of the checkpoints that the run still has, from the oldest to the newest, each drawn as `generate` does
// by default, so that the samples differ by the weights alone.
std::vector<CheckpointSample> checkpoint_samples(const std::string& run, const SampleOptions&);
// Markup; empty: there are none.
std::string samples_html(const std::string& run, const std::vector<CheckpointSample>&);

}  // namespace ring
