#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

// The commands of the program, or those below one of them.
std::vector<std::string> command_names(const CLI::App&);
const CLI::App* find_command(const CLI::App&, const std::string& name);  // null: there is none

// The option of a command that this word names; null: it names none, or what it takes does not follow as words of their
// own.
const CLI::Option* option_before_values(const CLI::App& command, const std::string& word);
std::size_t value_count(const CLI::Option&);  // words that follow it

}  // namespace ring
