#pragma once
// Several runs side by side.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ring {

struct DifferingSetting {
  std::string key;
  std::vector<std::string> values;  // of each run
};

inline constexpr const char *kSettingAbsent = "(absent)", *kSettingsUnreadable = "(unreadable)";

// The settings of config.yaml that are not the same in all runs, except for the run's own name and place. One that
// cannot be read differs in nothing; `problems` has a line for it.
std::vector<DifferingSetting> differing_settings(const std::vector<std::string>& runs,
                                                 std::vector<std::string>* problems = nullptr);

// What the records of a run say, by step; of a step that was recorded twice, the later.
struct RunCurves {
  std::map<std::int64_t, double> loss, validation_loss, tokens_per_second, step_ms, data_ms, memory_peak;
};
RunCurves curves_of(const std::string& run);  // Error: metrics.jsonl cannot be read

// At most `most` of the steps that all runs have, evenly spread, the last one among them.
std::vector<std::int64_t> common_steps(const std::vector<const std::map<std::int64_t, double>*>& curves,
                                       std::size_t most);

}  // namespace ring
