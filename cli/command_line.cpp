#include "cli/command_line.h"

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/log_level.h"

namespace ring {

void add_commands(Command app) {
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
  app.add_subcommand("help", "Print help of a command and its options: ringmaster help [COMMAND]");
  add_log_levels(app);
}

}  // namespace ring
