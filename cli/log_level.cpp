#include "cli/log_level.h"

#include <algorithm>
#include <map>

#include "cli/command.h"
#include "core/check.h"
#include "core/log.h"

namespace ring {
namespace {

constexpr const char* kOption = "--log-level";

const std::map<std::string, log::Level> kLevels{
    {"debug", log::Level::debug}, {"info", log::Level::info}, {"warn", log::Level::warn}, {"error", log::Level::error}};

// Paths of the commands that have --log-level.
const std::vector<std::vector<std::string>> kLoggingCommands = {
    {"train"},           {"launch"},          {"eval"},          {"generate"},         {"serve"},
    {"report"},          {"sweep"},           {"export"},        {"import"},           {"tokenizer", "train"},
    {"data", "prepare"}, {"data", "inspect"}, {"bench", "step"}, {"bench", "context"}, {"bench", "calibrate"},
    {"bench", "links"}};

}  // namespace

void add_log_levels(Command app) {
  for (const std::vector<std::string>& path : kLoggingCommands) {
    Command command = app;
    for (const std::string& name : path) command = command.find_command(name);
    const Option option = command.add_option(
        kOption, [](const std::string& level) { log::set_level(kLevels.at(level)); },
        "Minimum level of log lines on the console and in a run's log.txt");
    option.one_of({"debug", "info", "warn", "error"}).show_default("info");
    // `launch` can also read its other options from the environment.
    if (path.front() == "launch") option.envname("PET_LOG_LEVEL");
  }
}

void add_log_level_arguments(const std::string& level, std::vector<std::string>& command) {
  const bool has = std::ranges::any_of(command, [](const std::string& word) { return word.starts_with(kOption); });
  if (level.empty() || has || command.empty()) return;
  const std::ptrdiff_t names = command[0] == "bench" && command.size() > 1 ? 2 : 1;
  command.insert(command.begin() + names, str(kOption, "=", level));
}

}  // namespace ring
