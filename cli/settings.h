#pragma once
// Reads the settings that an argument of a command names.

#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

inline constexpr const char* kSettingsText = "YAML file, or the directory of a run or checkpoint";

// Returns the settings of a YAML file, of a run (as it would be resumed) or of a checkpoint, with overrides applied.
// Throws Error if the path is none of these or if a setting is wrong.
Config load_settings(const std::string& path, const std::vector<std::string>& overrides);

// Like load_settings(), but only for a file or a run, since a checkpoint cannot be resumed without its run. warn: true
// on the process that reports anything unusual in the run's config.yaml.
Config settings_to_train(const std::string& path, const std::vector<std::string>& overrides, bool warn);

}  // namespace ring
