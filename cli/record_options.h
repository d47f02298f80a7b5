#pragma once
// How commands that read text find the documents in records of JSON Lines and Parquet.

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

struct PrepareOptions;

// Adds --text-field, --prompt-field, --completion-field, --chat-field and --chat-template. `needed`: the option that
// these require; null if none.
void add_record_options(CLI::App& command, PrepareOptions&, CLI::Option* needed = nullptr);

}  // namespace ring
