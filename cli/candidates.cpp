#include "cli/candidates.h"

#include <algorithm>
#include <sstream>

#include "cli/command.h"
#include "core/fields_parse.h"
#include "engine/config.h"

namespace ring {
namespace {

using Words = std::vector<std::string>;
using Candidates = std::vector<Candidate>;

// Returns the choices that CLI11 lists in the option's type, e.g. "TEXT:{auto,cpu,cuda}".
Words choices_of(Option option) {
  const std::string type = option.type_text();
  const std::size_t open = type.find('{'), close = type.find('}', open);
  if (close == std::string::npos) return {};
  Words choices;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(list, word, ',');) choices.push_back(word);
  return choices;
}

// Position in a command line: the current command, and the option whose value comes next.
class Place {
 public:
  explicit Place(Command app) : root_(app), command_(app) {}

  void pass(const std::string& word) {
    if (values_ > 0) {
      --values_;
      return;
    }
    if (word == "--") {
      if (is("launch")) command_ = root_;
      return;
    }
    if (word.starts_with('-')) {
      option_ = command_.option_before_values(word);
      values_ = option_ ? option_.min_values() : 0;
      return;
    }
    if (const Command next = commands().find_command(word)) {
      command_ = next;
      plain_ = 0;
    } else {
      ++plain_;
    }
  }

  Command command() const { return command_; }
  // Returns the command whose subcommands may follow; after `help` and `launch --`, this is the program.
  Command commands() const { return is("launch") || is("help") ? root_ : command_; }
  Option waiting() const { return values_ > 0 ? option_ : Option(); }
  bool begins() const { return plain_ == 0; }
  // Returns the positional argument that comes next; an empty Option if all are used.
  Option next_word() const {
    const std::vector<Option> all = command_.positionals();
    if (all.empty()) return {};
    return plain_ < all.size() ? all[plain_] : all.back().max_values() > 1 ? all.back() : Option();
  }

 private:
  bool is(const char* name) const { return command_ != root_ && command_.name() == name; }

  Command root_, command_;
  Option option_;
  std::size_t values_ = 0;  // number of values of option_ that are still to come
  std::size_t plain_ = 0;   // number of words so far that are not options
};

Candidates values_of(const config::Node& root, const std::string& key) {
  const config::Field* field = config::find_field(root, key);
  if (!field || !field->node.scalar()) return {};
  Words values = field->node.choices;
  if (field->node.kind == config::Kind::boolean) values = {"true", "false"};
  const std::string otherwise = config::to_text(field->node.get());
  const bool known = std::ranges::find(values, otherwise) != values.end();
  if (!known && !otherwise.empty() && otherwise != "\"\"") values.push_back(otherwise);
  Candidates found;
  for (const std::string& v : values) found.push_back({key + "=" + v, v == otherwise ? "the default" : ""});
  return found;
}

// Completes a setting: returns the fields of its section or, after '=', its values.
Candidates settings(const std::string& word) {
  Config config;
  const config::Node root = bind_config(config);
  if (const std::size_t equal = word.find('='); equal != std::string::npos)
    return values_of(root, word.substr(0, equal));
  const std::size_t dot = word.rfind('.');
  const config::Field* section = dot == std::string::npos ? nullptr : config::find_field(root, word.substr(0, dot));
  if (dot != std::string::npos && !section) return {};
  const std::string path = word.substr(0, dot + 1);
  Candidates found;
  for (const config::Field& field : (section ? section->node : root).fields) {
    found.push_back({path + field.name + (field.node.kind == config::Kind::section ? "." : "="), field.text});
  }
  return found;
}

Candidates options_of(Command command) {
  Candidates found;
  for (Option option : command.named_options())
    for (const std::string& name : option.names()) found.push_back({name, option.description()});
  return found;
}

Candidates values_of(Option option, const std::string& before) {
  Candidates found;
  for (const std::string& value : choices_of(option)) found.push_back({before + value, ""});
  return found;
}

Candidates commands_of(Command app) {
  Candidates found;
  for (const std::string& name : app.command_names()) found.push_back({name, app.find_command(name).description()});
  return found;
}

Candidates all_at(const Place& place, const std::string& word) {
  if (const Option option = place.waiting()) return values_of(option, "");
  if (const std::size_t equal = word.find('='); word.starts_with('-') && equal != std::string::npos) {
    const Option option = place.command().find_option(word.substr(0, equal));
    return option ? values_of(option, word.substr(0, equal + 1)) : Candidates{};
  }
  if (word.starts_with('-')) return options_of(place.command());
  Candidates found = place.begins() ? commands_of(place.commands()) : Candidates{};
  if (const Option next = place.next_word()) {
    const bool changes = next.name() == "overrides";
    for (Candidate& c : changes ? settings(word) : values_of(next, "")) found.push_back(std::move(c));
  }
  return found;
}

// Returns the first sentence or clause of the first line.
std::string in_a_line(std::string about) {
  about = about.substr(0, about.find('\n'));
  return about.substr(0, std::min(about.find(". "), about.find("; ")));
}

}  // namespace

std::vector<Candidate> completion_candidates(Command app, const std::vector<std::string>& words) {
  Place place(app);
  const std::string word = words.empty() ? "" : words.back();
  for (std::size_t i = 0; i + 1 < words.size(); ++i) place.pass(words[i]);
  Candidates found = all_at(place, word);
  std::erase_if(found, [&](const Candidate& c) { return !c.text.starts_with(word); });
  for (Candidate& c : found) c.about = in_a_line(c.about);
  return found;
}

}  // namespace ring
