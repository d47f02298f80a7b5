// Parses the program's arguments. Detects errors for which CLI11 would blame the wrong word, and suggests what was
// probably meant.

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/synonyms.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "core/joined.h"
#include "engine/config.h"

namespace ring {
namespace {

using Words = std::vector<std::string>;

[[noreturn]] void refuse(Command at, const std::string& what) {
  std::string name;
  for (Command command = at; command.parent(); command = command.parent())
    name = command.name() + (name.empty() ? ": " : " ") + name;
  throw UsageError(name + what);
}

// Returns the known word that begins with `word`, or with which `word` begins; else the word with the nearest spelling;
// "" if none is near.
std::string nearest(const std::string& word, const Words& known) {
  for (const std::string& k : known)
    if (std::min(word.size(), k.size()) >= 3 && (k.starts_with(word) || word.starts_with(k))) return k;
  return config::nearest_name(word, known);
}

// Maps a name that other programs use for a command or option to our name, with advice on how to continue.
struct Synonym {
  std::string_view word, meant, advice = "";
};
constexpr Synonym kCommands[] = {{"resume", "train", "A run that has a checkpoint resumes: ringmaster train RUN"},
                                 {"continue", "train", "A run that has a checkpoint resumes: ringmaster train RUN"},
                                 {"fit", "train"},
                                 {"pretrain", "train"},
                                 {"finetune", "train", "run.init_from sets the weights to start from."},
                                 {"sample", "generate"},
                                 {"infer", "generate"},
                                 {"inference", "generate"},
                                 {"chat", "generate"},
                                 {"validate", "eval"},
                                 {"tokenize", "data prepare"},
                                 {"convert", "export", "To make a run of published weights, use ringmaster import."},
                                 {"torchrun", "launch"},
                                 {"version", "--version"}};
// Each applies to the commands that have the option meant.
constexpr Synonym kOptions[] = {{"-v", "--version"},
                                {"-V", "--version"},
                                {"-?", "--help"},
                                {"--port", "--listen", "It takes a port, or HOST:PORT."},
                                {"--host", "--listen", "It takes a port, or HOST:PORT."},
                                {"--max-new-tokens", "--max-tokens"},
                                {"--max_new_tokens", "--max-tokens"},
                                {"--n-predict", "--max-tokens"},
                                {"-o", "--output"},
                                {"--out", "--output"}};

// Returns a suggestion; "" if the word is not a synonym.
std::string answer(std::span<const Synonym> words, const std::string& word) {
  const auto found = std::ranges::find(words, word, &Synonym::word);
  if (found == words.end()) return "";
  return str("; did you mean ", found->meant, "?", found->advice.empty() ? "" : " ", found->advice);
}

std::string question(const std::string& meant) { return meant.empty() ? "" : "; did you mean " + meant + "?"; }

void refuse_command(Command at, const std::string& word) {
  if (const std::string known = at.parent() ? "" : answer(kCommands, word); !known.empty())
    refuse(at, "unknown command '" + word + "'" + known);
  const Words known = at.command_names();
  std::string meant = nearest(word, known);
  Words inner;  // subcommands called `word`, with their command, e.g. "data inspect"
  if (meant.empty())
    for (const std::string& name : known)
      if (at.find_command(name).find_command(word)) inner.push_back(name + " " + word);
  if (!inner.empty()) meant = joined(inner, " or ");
  refuse(at,
         "unknown command '" + word + "'" + (meant.empty() ? "; available: " + joined(known, ", ") : question(meant)));
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !std::isdigit(static_cast<unsigned char>(word[1])) && word[1] != '.';
}

std::string name_of(const std::string& option) {
  return option[1] == '-' ? option.substr(0, option.find('=')) : option.substr(0, 2);
}

bool takes_settings(Command command) { return static_cast<bool>(command.find_option("overrides")); }

void refuse_option(Command command, const std::string& word) {
  const std::string name = word.substr(0, word.find('=')), unknown = "unknown option " + name;
  if (takes_settings(command)) {
    Config config;
    const config::Node root = bind_config(config, config_aliases());
    const std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    std::string hint = config::hint_for_word(root, key, config::Given::value);
    if (hint.empty()) hint = config::hint_for_name(root, key, config::Given::value);
    if (!hint.empty()) refuse(command, unknown + "; " + hint + " (settings are written KEY=VALUE)");
  }
  std::vector<Synonym> synonyms;
  std::ranges::copy_if(kOptions, std::back_inserter(synonyms), [&](const Synonym& s) {
    const bool of_program = s.meant == "--version" || s.meant == "--help";
    return of_program ? !command.parent() : static_cast<bool>(command.find_option(std::string(s.meant)));
  });
  if (const std::string meant = answer(synonyms, name); !meant.empty()) refuse(command, unknown + meant);
  Words known;
  for (Option option : command.named_options()) std::ranges::copy(option.names(), std::back_inserter(known));
  const auto begins = [&](const std::string& k) { return k.starts_with("--" + name.substr(1)); };
  const auto with_letter = name.size() == 2 ? std::ranges::find_if(known, begins) : known.end();
  refuse(command, unknown + question(with_letter != known.end() ? *with_letter
                                     : name.size() == 2         ? ""
                                                                : nearest(name, known)));
}

// Returns true for settings that are written like options, as in other programs (`--optimizer.lr=1e-3`). None of our
// options contains a dot.
bool is_setting(const std::string& word) {
  const std::size_t dot = word.find('.');
  return word.starts_with("--") && dot < word.find('=') && word.find('=') != std::string::npos;
}

// Returns the number of words after the option `word` that are its values, at most `max`.
std::ptrdiff_t values_after(Option option, const std::string& word, std::ptrdiff_t max) {
  const bool has_value = word.size() > name_of(word).size();  // true for --name=value and -n2
  return has_value ? 0 : std::min(static_cast<std::ptrdiff_t>(option.min_values()), max);
}

// Checks the words of one command up to `--`, and removes the dashes of settings. Skips the values of options, which
// may look like options or settings.
void check_options(Command command, Words::iterator word, Words::iterator end) {
  for (; word != end && *word != "--"; ++word) {
    if (!is_option(*word)) continue;
    const Option option = command.find_option(name_of(*word));
    if (!option && takes_settings(command) && is_setting(*word)) {
      word->erase(0, 2);
      continue;
    }
    if (!option) refuse_option(command, *word);
    word += values_after(option, *word, end - word - 1);
  }
}

// Returns true for commands with positional arguments, such as `runs [DIR]`, which need no subcommand.
bool takes_words(Command command) { return !command.positionals().empty(); }

// Follows the command names as far as possible, and checks the options of each command.
void check_words(Command app, Words& words) {
  Command command = app;
  for (auto word = words.begin();;) {
    const bool last = command.command_names().empty() ||
                      (takes_words(command) && (word == words.end() || !command.find_command(*word)));
    const auto end = last ? words.end() : std::find_if_not(word, words.end(), is_option);
    check_options(command, word, end);
    if (last || end == words.end()) break;
    const Command next = command.find_command(*end);
    if (!next) refuse_command(command, *end);
    command = next;
    word = end + 1;
  }
  if (command != app && words.back() == command.name() && !command.command_names().empty() && !takes_words(command))
    refuse(command, "expected one of its commands: " + joined(command.command_names(), ", "));
}

[[noreturn]] void refuse_extra(Command command, const std::string& words) {
  const bool prompts = static_cast<bool>(command.find_option("--prompt"));
  refuse(command,
         "unexpected argument '" + words + "'" + (prompts ? "; did you mean --prompt \"" + words + "\"?" : ""));
}

// Reports all required arguments that are missing; CLI11 names only one.
[[noreturn]] void refuse_missing(Command command, const MissingOption& first) {
  Words missing;
  for (Option option : command.options())
    if (option.is_required() && !option.given()) missing.push_back(option.name());
  if (missing.size() < 2) throw first;
  const std::string last = std::move(missing.back());
  missing.pop_back();
  throw UsageError(joined(missing, ", ") + " and " + last + " are required");
}

// Turns e.g. `help bench step` into `bench step --help`.
void turn_help_around(Words& words) {
  if (words.empty() || words[0] != "help") return;
  words.erase(words.begin());
  words.push_back("--help");
}

// Returns the arguments of `launch` with a missing `--` added before the command, and with dashes instead of
// underscores in torchrun's older option names (--nproc_per_node).
Words launch_words(Command app, Words arguments) {
  if (arguments.empty() || arguments[0] != "launch") return arguments;
  const Command launch = app.find_command(arguments[0]);
  const auto end = std::ranges::find(arguments, "--");
  auto word = arguments.begin() + 1;
  for (; word < end && !app.find_command(*word); ++word) {
    if (!is_option(*word)) continue;
    if (word->starts_with("--"))
      std::replace(word->begin(), word->begin() + static_cast<std::ptrdiff_t>(name_of(*word).size()), '_', '-');
    if (Option option = launch.find_option(name_of(*word))) word += values_after(option, *word, end - word - 1);
  }
  if (end == arguments.end() && word != end) arguments.insert(word, "--");
  return arguments;
}

}  // namespace

void parse_arguments(Program& program, Words arguments) {
  turn_help_around(arguments);
  arguments = launch_words(program, std::move(arguments));
  check_words(program, arguments);
  try {
    program.parse(std::move(arguments));
  } catch (const UnexpectedWords& e) {
    refuse_extra(program.given_command(), e.what());
  } catch (const MissingOption& e) {
    refuse_missing(program.given_command(), e);
  }
}

}  // namespace ring
