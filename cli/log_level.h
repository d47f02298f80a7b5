#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// Adds --log-level to each command that logs. Call after all commands are added.
void add_log_levels(Command app);

// Adds the launcher's log level to a worker's command, unless the command already has one. level: empty if none was
// given.
void add_log_level_arguments(const std::string& level, std::vector<std::string>& command);

}  // namespace ring
