#pragma once
// The commands of the program, one file for each family.

namespace CLI {
class App;
}

namespace ring {

// Each adds its command to `app`, and its subcommands to that. A callback does the work. Error: it failed. ExitCode: it
// has done its work and ends with a code of its own.
void add_init_command(CLI::App& app);         // init
void add_tokenizer_commands(CLI::App& app);   // tokenizer train | encode | decode | inspect
void add_data_commands(CLI::App& app);        // data prepare | inspect | verify
void add_config_commands(CLI::App& app);      // config show | docs
void add_train_command(CLI::App& app);        // train
void add_eval_command(CLI::App& app);         // eval
void add_generate_command(CLI::App& app);     // generate
void add_bench_commands(CLI::App& app);       // bench step | ops | floor | attention | context | calibrate
void add_checkpoint_commands(CLI::App& app);  // checkpoint inspect | verify | reshard | prune | diff
void add_export_command(CLI::App& app);       // export
void add_import_command(CLI::App& app);       // import
void add_attention_commands(CLI::App& app);   // attention show | fit
void add_runs_command(CLI::App& app);         // runs [compare]
void add_metrics_command(CLI::App& app);      // metrics export
void add_report_command(CLI::App& app);       // report
void add_serve_command(CLI::App& app);        // serve
void add_watch_command(CLI::App& app);        // watch
void add_sweep_command(CLI::App& app);        // sweep
void add_doctor_command(CLI::App& app);       // doctor
void add_plan_command(CLI::App& app);         // plan
void add_launch_command(CLI::App& app);       // launch
void add_completion_commands(CLI::App& app);  // completion bash | zsh | fish | words
void add_man_command(CLI::App& app);          // man

}  // namespace ring
