#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/command_names.h"
#include "cli/commands.h"
#include "cli/man_page.h"
#include "core/check.h"
#include "data/output_file.h"

namespace ring {
namespace {

struct Options {
  std::string command, folder;
};

const CLI::App& named(const CLI::App& program, const std::string& name) {
  if (name.empty()) return program;
  const CLI::App* command = find_command(program, name);
  if (!command) fail("man: '", name, "' is no command; ringmaster --help lists them");
  return *command;
}

void write_all(const CLI::App& program, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const auto write = [&](const CLI::App& command) {
    write_whole(folder + "/" + man_page_name(program, command), man_page(program, command));
  };
  write(program);
  for (const std::string& name : command_names(program)) write(*find_command(program, name));
}

}  // namespace

void add_man_command(CLI::App& app) {
  CLI::App* man = app.add_subcommand("man", "Print the manual page of a command, or write all of them");
  auto options = std::make_shared<Options>();
  man->add_option("command", options->command, "A command (default: the program)");
  man->add_option("--output", options->folder, "Write all pages into this folder, such as ~/.local/share/man/man1")
      ->type_name("DIR");
  man->footer("Example: ringmaster man train | man -l -");
  man->callback([&app, options] {
    if (options->folder.empty())
      std::cout << man_page(app, named(app, options->command));
    else
      write_all(app, options->folder);
  });
}

}  // namespace ring
