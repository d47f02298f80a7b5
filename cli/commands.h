#pragma once
// The commands of the program; each family of commands has its own file.

#include "cli/command.h"

namespace ring {

// Each function adds its command, with all subcommands, to `app`. Callbacks do the work: they throw Error if it fails,
// and ExitCode if it succeeds but ends with a special exit code.
void add_init_command(Command app);
void add_tokenizer_commands(Command app);  // tokenizer train | encode | decode | inspect
void add_data_commands(Command app);       // data prepare | synthesize | inspect | export | verify
void add_config_commands(Command app);     // config show | docs
void add_train_command(Command app);
void add_eval_command(Command app);
void add_generate_command(Command app);
void add_bench_commands(Command app);       // bench: see cli/bench.h
void add_checkpoint_commands(Command app);  // checkpoint inspect | verify | reshard | prune | diff
void add_export_command(Command app);
void add_import_command(Command app);
void add_attention_commands(Command app);  // attention show | fit
void add_runs_command(Command app);        // runs [compare]
void add_metrics_command(Command app);     // metrics export
void add_report_command(Command app);
void add_serve_command(Command app);
void add_watch_command(Command app);
void add_sweep_command(Command app);
void add_doctor_command(Command app);
void add_plan_command(Command app);
void add_launch_command(Command app);
void add_completion_commands(Command app);  // completion bash | zsh | fish | words
void add_man_command(Command app);

// Subcommands that have their own files.
void add_data_export(Command data);
void add_data_inspect(Command data);
void add_data_synthesize(Command data);
void add_checkpoint_tools(Command checkpoint);  // checkpoint reshard | prune | diff
void add_attention_fit(Command attention);

}  // namespace ring
