// Manual pages contain everything that --help shows.
#include <gtest/gtest.h>

#include "cli/command_line.h"
#include "cli/man_page.h"
#include "core/check.h"
#include "core/exit_code.h"

namespace ring {
namespace {

class ManPage : public testing::Test {
 protected:
  ManPage() { add_commands(app_); }
  Program app_{"ringmaster", "A program. With two sentences"};
};

// Returns the page as a reader sees it, without fonts and escapes.
std::string rendered_text(std::string page) {
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

void expect_all_of(Command command, const std::string& page) {
  for (Option option : command.options()) {
    if (option.name() == "--help") continue;  // readers of the page do not need it
    for (const std::string& name : option.names()) EXPECT_NE(page.find(name), std::string::npos) << name;
    EXPECT_NE(page.find(option.description()), std::string::npos) << option.name();
  }
  const bool inherited = command.footer() == command.parent().footer();
  EXPECT_TRUE(inherited || page.find(command.footer()) != std::string::npos) << command.name();
  for (const std::string& name : command.command_names()) expect_all_of(command.find_command(name), page);
}

TEST_F(ManPage, ListsEveryOptionOfEveryCommand) {
  for (const std::string& name : app_.command_names()) {
    SCOPED_TRACE(name);
    const Command command = app_.find_command(name);
    EXPECT_EQ(man_page_name(app_, command), "ringmaster-" + name + ".1");
    expect_all_of(command, rendered_text(man_page(app_, command)));
  }
}

TEST_F(ManPage, ListsEveryExitStatus) {
  const std::string page = rendered_text(man_page(app_, app_.find_command("train"))),
                    codes = page.substr(page.find("EXIT STATUS"));
  for (const int code :
       {kExitError, kExitUsage, kExitInterrupted, kExitPeerLost, kExitTakenOver, kExitOutOfMemory, kExitDeviceFailure})
    EXPECT_NE(codes.find(str("\n", code, "\n")), std::string::npos) << codes;
}

TEST_F(ManPage, ThePageOfTheProgramNamesThoseOfItsCommands) {
  EXPECT_EQ(man_page_name(app_, app_), "ringmaster.1");
  const std::string page = rendered_text(man_page(app_, app_));
  for (const std::string& name : app_.command_names())
    EXPECT_NE(page.find("ringmaster-" + name + "(1)"), std::string::npos) << name;
}

// Without an escape, a line of text that begins with a dot would be a request and not be shown.
TEST_F(ManPage, LinesThatLookLikeRequestsAreEscaped) {
  const Command command = app_.add_subcommand("odd", "Odd");
  command.footer(".hidden\n'too\nback\\slash");
  EXPECT_NE(man_page(app_, command).find("\n\\&.hidden\n\\&'too\nback\\eslash\n"), std::string::npos);
}

}  // namespace
}  // namespace ring
