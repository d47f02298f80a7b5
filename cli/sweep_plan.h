#pragma once
// What `ringmaster sweep` reads: which runs a file asks for, and with which settings.

#include <string>
#include <vector>

namespace ring {

struct SweepRun {
  std::string name;                   // "001", also of its folder
  std::vector<std::string> settings;  // "optimizer.lr=0.001", one for each key of the file
};

struct SweepPlan {
  std::string train;      // what all runs have: as for `ringmaster train`
  std::string directory;  // with a folder for each run
  std::vector<std::string> keys;
  std::vector<SweepRun> runs;
};

// The keys of the file (YAML):
//   train, directory   see above
//   settings           by key: a list of values, or {from: A, to: B, scale: linear or log} to draw from
//   runs               how many to draw; without it there is a run for each combination of the lists
//   seed               of what is drawn; run n has the same settings whatever `runs` is
// At most kMostSweepRuns. Error names file, line and key.
SweepPlan read_sweep(const std::string& file);
inline constexpr std::size_t kMostSweepRuns = 1000;

}  // namespace ring
