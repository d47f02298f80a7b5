#pragma once
// Commands and options of the command line. Only cli/command.cpp includes CLI11: its templates would cost seconds of
// compile time in each file that uses them.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/check.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

inline constexpr std::int64_t kMaxThreads = 4096;  // maximum per process
inline constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;  // maximum tokens per sequence
inline constexpr std::int64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMaxHeads = 1 << 16, kMaxHeadDim = 4096;

// A handle to an option of a command, valid while the Program lives. A default-constructed handle refers to no option.
class Option {
 public:
  Option() = default;
  explicit Option(CLI::Option* option) : option_(option) {}
  explicit operator bool() const { return option_ != nullptr; }

  // These functions return this option, so that calls can be chained.
  Option required() const;
  Option type_name(const std::string& text) const;  // shown in --help
  Option group(const std::string& title) const;     // shown in --help
  Option show_default() const;                      // shows the variable's current value in --help
  Option show_default(const std::string& text) const;
  Option one_of(const std::vector<std::string>& choices) const;
  // check: called with every value; throws Error if the value is wrong.
  Option check(const std::function<void(const std::string&)>& check) const;
  Option delimiter(char between) const;               // splits a word into several values at this character
  Option takes(int min, int max) const;               // number of values
  Option takes_at_least(int min) const;               // number of values
  Option takes_one_word() const;                      // takes a single word, which may contain several values
  Option envname(const std::string& variable) const;  // environment variable that is read if the option is not given
  // For needs() and excludes(), the other options must have been added before.
  Option needs(const std::string& other) const;
  Option excludes(std::initializer_list<const char*> others) const;

  std::string name() const;  // e.g. "--seed"; "config" for a positional argument
  // Returns e.g. "--nproc-per-node", "-n", long names first; empty for a positional argument.
  std::vector<std::string> names() const;
  std::string description() const;
  std::string type_text() const;     // type as shown in --help, with the range or the choices
  std::string default_text() const;  // "" if --help shows no default
  bool is_positional() const;
  bool is_required() const;
  std::size_t min_values() const;  // number of words that must follow the option
  std::size_t max_values() const;

  // Results of the last parse().
  bool given() const;
  const std::vector<std::string>& values() const;

 private:
  CLI::Option* option_ = nullptr;
};

// A handle to a command of the program, valid while the Program lives. A default-constructed handle refers to no
// command.
class Command {
 public:
  Command() = default;
  explicit Command(CLI::App* app) : app_(app) {}
  explicit operator bool() const { return app_ != nullptr; }
  friend bool operator==(const Command&, const Command&) = default;

  Command add_subcommand(const std::string& name, const std::string& text) const;
  void require_subcommand() const;
  void footer(const std::string& text) const;  // text below the options in --help

  // Sets the function that parse() calls if the command line names this command.
  void set_callback(const std::function<void()>& run) const;
  // Creates an object of type A for the command's options to fill. If the command line names this command, parse()
  // calls run() with the object.
  template <class A>
  std::remove_const_t<A>& runs(void (*run)(A&)) const {
    const std::shared_ptr<std::remove_const_t<A>> arguments(new std::remove_const_t<A>());
    set_callback([arguments, run] { run(*arguments); });
    return *arguments;
  }

  // Each function adds an option that writes to `value`, which must exist as long as the Program. names: e.g.
  // "--tee,-t", or "config" for a positional argument.
  Option add_flag(const std::string& names, bool& value, const std::string& text) const;
  Option add_option(const std::string& names, std::string& value, const std::string& text) const;
  Option add_option(const std::string& names, std::vector<std::string>& values, const std::string& text) const;
  Option add_option(const std::string& names, const std::function<void(const std::string&)>& on_value,
                    const std::string& text) const;

  // Adds an option for a number, or for several numbers separated by commas. Numbers are parsed as in settings (1e3 is
  // 1000, 010 is ten), must be in [min, max], which --help shows, and are stored exactly. T: int, std::int64_t,
  // std::uint64_t, double, or a std::vector of int, std::int64_t or double.
  template <class T>
  Option add_number(const std::string& names, T& value, const std::string& text, long double min,
                    long double max) const;

  // Adds an option for a size: a whole number, or a number with a unit: 50MB is 50,000,000 and 50MiB is 52,428,800.
  Option add_bytes(const std::string& names, std::uint64_t& value, const std::string& text, std::uint64_t min,
                   std::uint64_t max) const;

  std::string name() const;
  std::string description() const;
  std::string footer() const;
  Command parent() const;  // refers to no command if this is the program
  std::vector<std::string> command_names() const;
  Command find_command(const std::string& name) const;
  std::vector<Option> options() const;  // options in the order in which they were added, including positional arguments
  std::vector<Option> named_options() const;
  std::vector<Option> positionals() const;
  Option find_option(const std::string& name) const;
  // Returns the option that `word` names if its values are separate words (--x 1, not --x=1); else an empty Option.
  Option option_before_values(const std::string& word) const;

  // Returns the innermost command that the last parse() found; returns this command if it found none below it.
  Command given_command() const;

 protected:
  CLI::App* app_ = nullptr;
};

// The program with all its commands.
class Program : public Command {
 public:
  Program(const std::string& name, const std::string& text);

  void set_version(const std::string& text);  // text that --version prints
  std::string help() const;

  // Parses the program's arguments, without its name, and runs the commands that they name. Throws HelpAsked,
  // UsageError, or an exception of the commands.
  void parse(std::vector<std::string> arguments);

  // Makes parse() only parse the command line, without running a command.
  void disable_callbacks();

 private:
  std::shared_ptr<CLI::App> owner_;
};

// Thrown for --help and --version.
struct HelpAsked {
  std::string text;
};

// Thrown if the command line cannot be understood.
struct UsageError : Error {
  using Error::Error;
};
struct UnexpectedWords : UsageError {  // thrown for words that no option or argument takes
  using UsageError::UsageError;
};
struct MissingOption : UsageError {
  using UsageError::UsageError;
};

}  // namespace ring
