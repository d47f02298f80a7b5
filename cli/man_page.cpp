#include "cli/man_page.h"

#include <algorithm>

#include "cli/command.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "generated/build_info.h"

namespace ring {
namespace {

using Names = std::vector<std::string>;

// Escapes text for troff: a line that begins with '.' or ''' is a request, and '\' and '-' are special.
std::string escaped(const std::string& text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    begins = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string paragraph(const std::string& text) { return text.empty() ? "" : ".PP\n" + escaped(text) + "\n"; }
std::string section(const std::string& title) { return ".SH " + title + "\n"; }
std::string entry(const std::string& head, const std::string& text) {
  return ".TP\n" + head + "\n" + escaped(text) + "\n";
}
std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string slanted(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Returns the options whose names have dashes, except --help.
std::vector<Option> listed_options(Command command) {
  std::vector<Option> options = command.named_options();
  std::erase_if(options, [](Option o) { return o.name() == "--help"; });
  return options;
}

std::string names_of(Option option) {
  Names names = option.names();
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& n) { return n.size() == 2; });  // shows -n before --nodes
  for (std::string& n : names) n = bold(n);
  return joined(names, ", ") + (option.max_values() == 0 ? "" : " " + slanted(option.type_text()));
}

std::string default_of(Option option) {
  return option.default_text().empty() ? "" : " (default: " + option.default_text() + ")";
}

// Returns e.g. `ringmaster data prepare [options] input ...`.
std::string synopsis(const std::string& name, Command command) {
  std::string line = bold(name);
  if (!listed_options(command).empty()) line += " [" + slanted("options") + "]";
  for (Option word : command.positionals()) {
    std::string text = slanted(word.name());
    if (word.max_values() > 1) text += " ...";
    line += word.is_required() ? " " + text : " [" + text + "]";
  }
  if (!command.command_names().empty()) line += " " + slanted("command") + " ...";
  return line + "\n";
}

std::string option_items(Command command) {
  std::string text;
  for (Option word : command.positionals()) text += entry(slanted(word.name()), word.description() + default_of(word));
  for (Option option : listed_options(command))
    text += entry(names_of(option), option.description() + default_of(option));
  return text;
}

// Returns the command's own footer, with its line breaks, since most lines are commands. A footer that is inherited
// from the parent is left out.
std::string footer_of(Command command) {
  const Command above = command.parent();
  const bool own = !above || above.footer() != command.footer();
  return command.footer().empty() || !own ? "" : ".PP\n.nf\n" + escaped(command.footer()) + "\n.fi\n";
}

std::string commands_below(const std::string& name, Command command) {
  std::string text;
  for (const std::string& sub : command.command_names()) {
    const Command below = command.find_command(sub);
    text += ".SS " + escaped(name + " " + sub) + "\n" + synopsis(name + " " + sub, below) +
            paragraph(below.description() + ".") + option_items(below) + footer_of(below) +
            commands_below(name + " " + sub, below);
  }
  return text;
}

std::string all_commands(Command program) {
  std::string text;
  for (const std::string& name : program.command_names())
    text += entry(bold(program.name() + "-" + name) + "(1)", program.find_command(name).description());
  return text;
}

// Returns the section on exit codes; docs/fault_tolerance.md says how a launcher reacts to them.
std::string exit_codes() {
  std::string text = section("EXIT STATUS");
  text += entry("0", "Done.");
  text += entry(std::to_string(kExitError), "The command failed; standard error says why and what to do.");
  text += entry(std::to_string(kExitUsage), "The command line is invalid.");
  text += entry(std::to_string(kExitInterrupted),
                "A signal ended the run after it had saved; the same command resumes it.");
  text += entry(std::to_string(kExitPeerLost), "Another process of the job failed; that process says why.");
  text += entry(std::to_string(kExitTakenOver), "Another process now trains this run, so this one stopped.");
  text += entry(std::to_string(kExitOutOfMemory),
                "Memory ran out; the run recorded smaller settings, and the same command resumes with them.");
  text += entry(std::to_string(kExitDeviceFailure), "A GPU failed; the same command resumes the run.");
  return text;
}

std::string see_also(Command program, bool itself) {
  return section("SEE ALSO") + (itself ? "" : bold(program.name()) + "(1). ") +
         escaped("Settings: ringmaster config docs.") + "\n";
}

}  // namespace

std::string man_page_name(Command program, Command command) {
  return (program == command ? program.name() : program.name() + "-" + command.name()) + ".1";
}

std::string man_page(Command program, Command command) {
  const bool itself = program == command;
  const std::string page = man_page_name(program, command), title = page.substr(0, page.size() - 2);
  const std::string name = itself ? program.name() : program.name() + " " + command.name();
  std::string text = str(".TH ", escaped(upper(title)), " 1 \"\" \"ringmaster ", build_info::kVersion, "\"\n");
  text += section("NAME") + escaped(title) + " \\- " + escaped(command.description()) + "\n";
  text += section("SYNOPSIS") + synopsis(name, command);
  if (const std::string options = option_items(command); !options.empty()) text += section("OPTIONS") + options;
  if (!command.command_names().empty())
    text += section("COMMANDS") + (itself ? all_commands(program) : commands_below(name, command));
  if (const std::string notes = footer_of(command); !notes.empty()) text += section("NOTES") + notes;
  return text + exit_codes() + see_also(program, itself);
}

}  // namespace ring
