#include "cli/command_line.h"

#include <CLI/CLI.hpp>

#include "cli/command_names.h"
#include "cli/commands.h"
#include "cli/log_level.h"

namespace ring {

void add_commands(CLI::App& app) {
  add_init_command(app);
  add_tokenizer_commands(app);
  add_data_commands(app);
  add_train_command(app);
  add_eval_command(app);
  add_generate_command(app);
  add_serve_command(app);
  add_checkpoint_commands(app);
  add_export_command(app);
  add_import_command(app);
  add_bench_commands(app);
  add_config_commands(app);
  add_attention_commands(app);
  add_plan_command(app);
  add_runs_command(app);
  add_metrics_command(app);
  add_report_command(app);
  add_watch_command(app);
  add_sweep_command(app);
  add_doctor_command(app);
  add_launch_command(app);
  add_completion_commands(app);
  add_man_command(app);
  app.add_subcommand("help", "Say what a command does and which options it has: ringmaster help [COMMAND]");
  add_log_levels(app);
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  const auto named = app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  return named.empty() ? nullptr : named.front();
}

const CLI::Option* option_before_values(const CLI::App& command, const std::string& word) {
  if (!word.starts_with('-') || word.find('=') != std::string::npos) return nullptr;
  const CLI::Option* option = command.get_option_no_throw(word);
  return option && value_count(*option) > 0 ? option : nullptr;
}

std::size_t value_count(const CLI::Option& option) {
  return static_cast<std::size_t>(std::max(0, option.get_items_expected_min()));
}

}  // namespace ring
