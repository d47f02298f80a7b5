#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/config_docs.h"
#include "cli/settings.h"
#include "core/fields.h"
#include "engine/run_directory.h"

namespace ring {
namespace {

struct ShowOptions {
  std::string file;
  std::vector<std::string> overrides;
};

void show(const ShowOptions& options) {
  Config config = load_settings(options.file, options.overrides);
  config.model = config.model.resolved();
  const bool restores = options.overrides.empty() && std::filesystem::is_directory(options.file);
  // The output can be redirected to a run's config.yaml.
  std::cout << (restores ? settings_with_hash(config) : to_yaml(config));
}

}  // namespace

void add_config_commands(Command app) {
  const Command config = app.add_subcommand("config", "Print settings and their reference");
  config.require_subcommand();

  const Command show_command =
      config.add_subcommand("show", "Print every key of a configuration, as a run would use it");
  ShowOptions& options = show_command.runs(show);
  show_command.add_option("config", options.file, kSettingsText).required().type_name("FILE");
  show_command.add_option("overrides", options.overrides, "settings to change, such as train.steps=100")
      .type_name("KEY=VALUE");

  config.add_subcommand("docs", "Print the reference of all keys in Markdown (docs/configuration.md)").set_callback([] {
    std::cout << configuration_reference();
  });
}

}  // namespace ring
