#pragma once
// Compares several runs.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ring {

struct DifferingSetting {
  std::string key;
  std::vector<std::string> values;  // one per run
};

inline constexpr const char *kSettingAbsent = "(absent)", *kSettingsUnreadable = "(unreadable)";

// Returns the settings in config.yaml that differ between the runs, except for each run's name and directory. Runs
// whose settings cannot be read are left out, with a line for each in `problems`.
std::vector<DifferingSetting> differing_settings(const std::vector<std::string>& runs,
                                                 std::vector<std::string>* problems = nullptr);

// Values in the records of a run, by step. If a step was recorded twice, the later record is used.
struct RunCurves {
  std::map<std::int64_t, double> loss, validation_loss, tokens_per_second, step_ms, data_ms, memory_peak;
};
RunCurves read_curves(const std::string& run);  // throws Error if metrics.jsonl cannot be read

// Returns at most `max` of the steps that all runs have, evenly spaced and including the last common step.
std::vector<std::int64_t> common_steps(const std::vector<const std::map<std::int64_t, double>*>& curves,
                                       std::size_t max);

}  // namespace ring
