#include "cli/man_page.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "cli/command_names.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "generated/build_info.h"

namespace ring {
namespace {

using Names = std::vector<std::string>;

// troff takes a line that begins with '.' or ''' for a request, and '\' and '-' as its own.
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

bool is_word(const CLI::Option* option) { return option->get_positional(); }
bool has_dashes(const CLI::Option* option) {
  return !option->get_positional() && option->get_lnames() != Names{"help"};
}

std::string names_of(const CLI::Option& option) {
  std::string names;
  for (const std::string& n : option.get_snames()) names += (names.empty() ? "" : ", ") + bold("-" + n);
  for (const std::string& n : option.get_lnames()) names += (names.empty() ? "" : ", ") + bold("--" + n);
  return option.get_items_expected_max() == 0 ? names : names + " " + slanted(option.get_type_name());
}

std::string default_of(const CLI::Option& option) {
  return option.get_default_str().empty() ? "" : " (default: " + option.get_default_str() + ")";
}

// `ringmaster data prepare [options] input ...`
std::string synopsis(const std::string& name, const CLI::App& command) {
  std::string line = bold(name);
  if (!command.get_options(has_dashes).empty()) line += " [" + slanted("options") + "]";
  for (const CLI::Option* word : command.get_options(is_word)) {
    std::string text = slanted(word->get_name(true));
    if (word->get_items_expected_max() > 1) text += " ...";
    line += word->get_required() ? " " + text : " [" + text + "]";
  }
  if (!command_names(command).empty()) line += " " + slanted("command") + " ...";
  return line + "\n";
}

std::string options_of(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* word : command.get_options(is_word))
    text += entry(slanted(word->get_name(true)), word->get_description() + default_of(*word));
  for (const CLI::Option* option : command.get_options(has_dashes))
    text += entry(names_of(*option), option->get_description() + default_of(*option));
  return text;
}

// Lines of a footer stay lines: most of them are commands. A command that has none inherits one.
std::string footer_of(const CLI::App& command) {
  const CLI::App* above = command.get_parent();
  const bool own = !above || above->get_footer() != command.get_footer();
  return command.get_footer().empty() || !own ? "" : ".PP\n.nf\n" + escaped(command.get_footer()) + "\n.fi\n";
}

std::string commands_below(const std::string& name, const CLI::App& command) {
  std::string text;
  for (const std::string& sub : command_names(command)) {
    const CLI::App& below = *find_command(command, sub);
    text += ".SS " + escaped(name + " " + sub) + "\n" + synopsis(name + " " + sub, below) +
            paragraph(below.get_description() + ".") + options_of(below) + footer_of(below) +
            commands_below(name + " " + sub, below);
  }
  return text;
}

std::string all_commands(const CLI::App& program) {
  std::string text;
  for (const std::string& name : command_names(program))
    text += entry(bold(program.get_name() + "-" + name) + "(1)", find_command(program, name)->get_description());
  return text;
}

// docs/fault_tolerance.md says what each of them means to a launcher.
std::string exit_codes() {
  std::string text = section("EXIT STATUS");
  text += entry("0", "Done.");
  text += entry(std::to_string(kExitError), "Failed; standard error says why and what to do.");
  text += entry(std::to_string(kExitUsage), "The command line cannot be understood.");
  text +=
      entry(std::to_string(kExitInterrupted), "A signal ended the run after it had saved; the same command goes on.");
  text += entry(std::to_string(kExitPeerLost), "Another process of the job was the cause; it says why.");
  text += entry(std::to_string(kExitTakenOver), "Another process trains this run now, and this one has stopped.");
  text += entry(std::to_string(kExitOutOfMemory),
                "Memory ran out; a smaller choice is recorded, and the same command goes on with it.");
  text += entry(std::to_string(kExitDeviceFailure), "A GPU failed; the same command resumes the run.");
  return text;
}

std::string see_also(const CLI::App& program, bool itself) {
  return section("SEE ALSO") + (itself ? "" : bold(program.get_name()) + "(1). ") +
         escaped("Settings: ringmaster config docs.") + "\n";
}

}  // namespace

std::string man_page_name(const CLI::App& program, const CLI::App& command) {
  return (&program == &command ? program.get_name() : program.get_name() + "-" + command.get_name()) + ".1";
}

std::string man_page(const CLI::App& program, const CLI::App& command) {
  const bool itself = &program == &command;
  const std::string page = man_page_name(program, command), title = page.substr(0, page.size() - 2);
  const std::string name = itself ? program.get_name() : program.get_name() + " " + command.get_name();
  std::string text = str(".TH ", escaped(upper(title)), " 1 \"\" \"ringmaster ", build_info::kVersion, "\"\n");
  text += section("NAME") + escaped(title) + " \\- " + escaped(command.get_description()) + "\n";
  text += section("SYNOPSIS") + synopsis(name, command);
  if (const std::string options = options_of(command); !options.empty()) text += section("OPTIONS") + options;
  if (!command_names(command).empty())
    text += section("COMMANDS") + (itself ? all_commands(program) : commands_below(name, command));
  if (const std::string notes = footer_of(command); !notes.empty()) text += section("NOTES") + notes;
  return text + exit_codes() + see_also(program, itself);
}

}  // namespace ring
