#pragma once
// The command line: one file per command family, each adding its subcommands to the application.

#include <functional>

namespace CLI {
class App;
}

namespace ring {

// Each adds its subcommands to `app`; the subcommand's callback does the work and throws Error on failure.
void add_tokenizer_commands(CLI::App& app);   // tokenizer train | encode | decode | inspect
void add_data_commands(CLI::App& app);        // data prepare | inspect
void add_config_commands(CLI::App& app);      // config show | docs
void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_checkpoint_commands(CLI::App& app);  // checkpoint inspect | verify

}  // namespace ring
