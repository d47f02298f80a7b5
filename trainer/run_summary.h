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
  std::string name;                  // path below the folder that was searched
  std::string status;                // one of kRun...
  std::string note;                  // why the run failed or cannot be read, or what is damaged; empty if all is well
  std::int64_t step = 0, steps = 0;  // step: the last one recorded; steps: planned, 0 if unknown or unlimited
  std::optional<double> loss;        // of the last recorded step
  std::optional<double> validation_loss;       // minimum
  std::optional<double> tokens_per_second;     // median of the last kLastRecords records
  std::optional<double> goodput;               // of the last job that recorded it, 0 to 1
  std::optional<double> memory_peak;           // bytes, on rank 0
  std::optional<double> age;                   // seconds since the last record
  std::int64_t restarts = 0;                   // by launchers
  std::string device;                          // GPU model, or cpu; empty if not recorded
  std::int64_t processes = 0, parameters = 0;  // 0 if not recorded
  std::string layout;                          // if there are several processes
};

inline constexpr const char *kRunRunning = "running", *kRunFinished = "finished", *kRunStopped = "stopped",
                            *kRunFailed = "failed", *kRunImported = "imported", *kRunUnreadable = "unreadable";

inline constexpr std::size_t kLastRecords = 20;  // number of step records that the median speed is computed from

// Callbacks that receive what a summary is made of: first the settings, if they can be read, then each record.
struct RunReader {
  std::function<void(const Config&)> settings = [](const Config&) {};
  std::function<void(const Record&)> record = [](const Record&) {};
};

// Summarizes a run. Never throws: the note says what cannot be read. A process on another machine is seen as running
// only if the file system shares locks.
RunSummary summarize_run(const std::string& path, const RunReader& = {});

// Returns the runs in a folder and its subfolders, or the run that the folder is, sorted by name. Does not follow
// links. Throws Error if the folder cannot be read.
std::vector<RunSummary> runs_below(const std::string& folder);

}  // namespace ring
