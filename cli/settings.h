#pragma once
// The settings that a command's argument names.

#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

inline constexpr const char* kSettingsText = "YAML file, or the directory of a run or a checkpoint";

// Those of a YAML file, of a run (as it would go on with them) or of a checkpoint, with changes. Error: the path is
// none of these, or a setting is wrong.
Config settings_at(const std::string& path, const std::vector<std::string>& overrides);

// As settings_at, of a file or a run: what trains goes on with a run, not with one of its checkpoints. warn: this
// process says what is odd with the run's config.yaml.
Config settings_to_train(const std::string& path, const std::vector<std::string>& overrides, bool warn);

}  // namespace ring
