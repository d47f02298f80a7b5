#pragma once
// The command line: one file per command family, each adding its subcommands to the application.

namespace CLI {
class App;
}

namespace ring {

// Each adds its subcommands to `app`; a subcommand's callback does the work and throws Error on failure.
void add_tokenizer_commands(CLI::App& app);  // tokenizer train | encode | decode | inspect
void add_data_commands(CLI::App& app);       // data prepare | inspect
void add_config_commands(CLI::App& app);     // config show | docs
void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_bench_commands(CLI::App& app);       // bench step | ops | attention
void add_checkpoint_commands(CLI::App& app);  // checkpoint inspect | verify
void add_attention_commands(CLI::App& app);   // attention show
void add_doctor_command(CLI::App& app);

}  // namespace ring
