#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ring {

// Adds --log-level to each command that logs. Call after all commands are added.
void add_log_levels(Command app);

// Gives a worker's command the launcher's level, unless it has one of its own. level: empty if none was given.
void pass_on_log_level(const std::string& level, std::vector<std::string>& command);

}  // namespace ring
