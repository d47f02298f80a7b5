#pragma once
// Summarizes a run from its directory, without opening a checkpoint.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "trainer/records.h"

namespace ring {

struct RunSummary {
  std::string path;
  std::string name;    // path relative to the folder that was searched
  std::string status;  // one of the constants kRun...
  std::string note;    // why the run failed or cannot be read, or what is damaged; empty if there is no problem
  std::int64_t step = 0, steps = 0;  // step: the last one recorded; steps: planned number, 0 if unknown or unlimited
  std::optional<double> loss;        // loss of the last recorded step
  std::optional<double> validation_loss;       // lowest validation loss
  std::optional<double> tokens_per_second;     // median of the last kLastRecords records
  std::optional<double> goodput;               // goodput of the last job that recorded it, 0 to 1
  std::optional<double> memory_peak;           // peak bytes on rank 0
  std::optional<double> age;                   // seconds since the last record
  std::int64_t restarts = 0;                   // number of restarts by launchers
  std::string device;                          // GPU model, or cpu; empty if not recorded
  std::int64_t processes = 0, parameters = 0;  // 0 if not recorded
  std::string layout;                          // parallel layout; empty for a single process
};

inline constexpr const char *kRunRunning = "running", *kRunFinished = "finished", *kRunStopped = "stopped",
                            *kRunFailed = "failed", *kRunImported = "imported", *kRunUnreadable = "unreadable";

inline constexpr std::size_t kLastRecords = 20;  // number of step records over which the median speed is taken

// Callbacks that receive the inputs of a summary: first the settings, if they can be read, then each record.
struct RunReader {
  std::function<void(const Config&)> settings = [](const Config&) {};
  std::function<void(const Record&)> record = [](const Record&) {};
};

// Summarizes a run. Never throws: the note says what cannot be read. A process on a different machine is recognized as
// running only if the file system shares locks.
RunSummary summarize_run(const std::string& path, const RunReader& = {});

// Returns the runs in a folder and its subfolders (or the folder itself, if it is a run), sorted by name. Does not
// follow links. Throws Error if the folder cannot be read.
std::vector<RunSummary> runs_below(const std::string& folder);

}  // namespace ring
