#pragma once
// What a run's directory tells of it, without opening a checkpoint.

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
  std::string name;                            // below the folder that was asked for
  std::string status;                          // one of kRun...
  std::string note;                            // why it failed or cannot be read, what is damaged; empty: all is well
  std::int64_t step = 0, steps = 0;            // done, as far as it is recorded; to do (0: not known, or none)
  std::optional<double> loss;                  // of the last recorded step
  std::optional<double> validation_loss;       // the lowest
  std::optional<double> tokens_per_second;     // the median of the last records
  std::optional<double> goodput;               // of the last job that said so, 0 to 1
  std::optional<double> memory_peak;           // bytes, on rank 0
  std::optional<double> age;                   // seconds since the last record
  std::int64_t restarts = 0;                   // by launchers
  std::string device;                          // its model, or cpu; empty: not recorded
  std::int64_t processes = 0, parameters = 0;  // 0: not recorded
  std::string layout;                          // of several processes
};

inline constexpr const char *kRunRunning = "running", *kRunFinished = "finished", *kRunStopped = "stopped",
                            *kRunFailed = "failed", *kRunImported = "imported", *kRunUnreadable = "unreadable";

inline constexpr std::size_t kLastRecords = 20;  // of steps, that the speed is the median of

// What a summary is made of, for whoever makes something else of it, too: the settings, if they can be read, then each
// record.
struct RunReader {
  std::function<void(const Config&)> settings = [](const Config&) {};
  std::function<void(const Record&)> record = [](const Record&) {};
};

// Never fails: what cannot be read is said in the note. A process that trains on another machine is only seen to run
// where the file system shares locks.
RunSummary summarize_run(const std::string& path, const RunReader& = {});

// The runs in a folder and in folders of it, or the run that the folder is, by name. Links are not followed. Error: the
// folder cannot be read.
std::vector<RunSummary> runs_below(const std::string& folder);

}  // namespace ring
