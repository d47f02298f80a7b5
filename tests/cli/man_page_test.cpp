// Manual pages say all that --help says.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/command_names.h"
#include "cli/man_page.h"
#include "core/check.h"
#include "core/exit_code.h"

namespace ring {
namespace {

class ManPage : public testing::Test {
 protected:
  ManPage() { add_commands(app_); }
  CLI::App app_{"A program. With two sentences", "ringmaster"};
};

// As a reader sees it: without fonts and escapes.
std::string read(std::string page) {
  for (const char* mark : {"\\fB", "\\fI", "\\fR", "\\&"})
    for (std::size_t at; (at = page.find(mark)) != std::string::npos;) page.erase(at, 3 - (mark[1] == '&'));
  std::string text;
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (page[i] != '\\')
      text += page[i];
    else if (page[++i] == 'e')
      text += '\\';
    else
      text += page[i];
  }
  return text;
}

void expect_all_of(const CLI::App& command, const std::string& page) {
  for (const CLI::Option* option : command.get_options({})) {
    if (option == command.get_help_ptr()) continue;  // who reads the page has it
    for (const std::string& name : option->get_lnames()) EXPECT_NE(page.find("--" + name), std::string::npos) << name;
    EXPECT_NE(page.find(option->get_description()), std::string::npos) << option->get_name();
  }
  const bool inherited = command.get_footer() == command.get_parent()->get_footer();
  EXPECT_TRUE(inherited || page.find(command.get_footer()) != std::string::npos) << command.get_name();
  for (const std::string& name : command_names(command)) expect_all_of(*find_command(command, name), page);
}

TEST_F(ManPage, HasEveryOptionOfEveryCommand) {
  for (const std::string& name : command_names(app_)) {
    SCOPED_TRACE(name);
    const CLI::App& command = *find_command(app_, name);
    EXPECT_EQ(man_page_name(app_, command), "ringmaster-" + name + ".1");
    expect_all_of(command, read(man_page(app_, command)));
  }
}

TEST_F(ManPage, HasEveryExitStatus) {
  const std::string page = read(man_page(app_, *find_command(app_, "train"))),
                    codes = page.substr(page.find("EXIT STATUS"));
  for (const int code :
       {kExitError, kExitUsage, kExitInterrupted, kExitPeerLost, kExitTakenOver, kExitOutOfMemory, kExitDeviceFailure})
    EXPECT_NE(codes.find(str("\n", code, "\n")), std::string::npos) << codes;
}

TEST_F(ManPage, OfTheProgramNamesThePagesOfItsCommands) {
  EXPECT_EQ(man_page_name(app_, app_), "ringmaster.1");
  const std::string page = read(man_page(app_, app_));
  for (const std::string& name : command_names(app_))
    EXPECT_NE(page.find("ringmaster-" + name + "(1)"), std::string::npos) << name;
}

// A line of text that begins with a dot would be a request, and be missing.
TEST_F(ManPage, NoTextIsTakenForARequest) {
  CLI::App* command = app_.add_subcommand("odd", "Odd");
  command->footer(".hidden\n'too\nback\\slash");
  EXPECT_NE(man_page(app_, *command).find("\n\\&.hidden\n\\&'too\nback\\eslash\n"), std::string::npos);
}

}  // namespace
}  // namespace ring
