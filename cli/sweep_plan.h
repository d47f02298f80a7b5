#pragma once
// Reads the file that `ringmaster sweep` takes: its runs and their settings.

#include <string>
#include <vector>

namespace ring {

struct SweepRun {
  std::string name;                   // e.g. "001"; also the name of the run's folder
  std::vector<std::string> settings;  // e.g. "optimizer.lr=0.001", one per key of the file
};

struct SweepPlan {
  std::string train;      // settings file for all runs, as for `ringmaster train`
  std::string directory;  // directory with a folder for each run
  std::vector<std::string> keys;
  std::vector<SweepRun> runs;
};

// Keys of the file (YAML):
//   train, directory   see above
//   settings           by key: a list of values, or {from: A, to: B, scale: linear or log} to sample from
//   runs               number of runs to sample; without it, there is a run for each combination of the lists
//   seed               seed of the samples; run n has the same settings for all values of `runs`
// There are at most kMaxSweepRuns runs. Throws Error with file, line and key.
SweepPlan read_sweep(const std::string& file);
inline constexpr std::size_t kMaxSweepRuns = 1000;

}  // namespace ring
