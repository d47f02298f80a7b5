#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/man_page.h"
#include "core/check.h"
#include "data/output_file.h"

namespace ring {
namespace {

struct Options {
  std::string command, folder;
};

Command named(Command program, const std::string& name) {
  if (name.empty()) return program;
  const Command command = program.find_command(name);
  if (!command) fail("man: unknown command '", name, "'. To list commands: ringmaster --help");
  return command;
}

void write_all(Command program, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const auto write = [&](Command command) {
    write_whole(folder + "/" + man_page_name(program, command), man_page(program, command));
  };
  write(program);
  for (const std::string& name : program.command_names()) write(program.find_command(name));
}

}  // namespace

void add_man_command(Command app) {
  const Command man = app.add_subcommand("man", "Print the manual page of a command, or write all of them");
  auto options = std::make_shared<Options>();
  man.add_option("command", options->command, "Command to document (default: the program)");
  man.add_option("--output", options->folder, "Write all pages to this folder, such as ~/.local/share/man/man1")
      .type_name("DIR");
  man.footer("Example: ringmaster man train | man -l -");
  man.set_callback([app, options] {
    if (options->folder.empty())
      std::cout << man_page(app, named(app, options->command));
    else
      write_all(app, options->folder);
  });
}

}  // namespace ring
