// Loads a config: applies files and overrides to the tree in order, then checks the result. Mistakes are collected and
// thrown together. `origins_` remembers where each key was last set, so that a failed check names that place.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <type_traits>

#include "core/byte_size.h"
#include "core/counted.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "core/joined.h"
#include "core/setting_problem.h"
#include "core/text_file.h"
#include "core/utf8_text.h"
#include "core/yaml.h"

namespace ring::config {
namespace {

namespace fs = std::filesystem;

// Limits of included files, far above any real use.
constexpr std::size_t kMaxFiles = 256, kDeepestInclude = 32;
// Maximum counts of mistakes that are collected and shown. More are collected than shown, because they are first sorted
// by line.
constexpr std::size_t kMaxProblems = 1000, kProblemsShown = 20;

// Returns a hint for `key = value`, the syntax of other formats; "" if the string has no '='.
std::string hint_at_equals(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0) return "";
  return " (YAML writes `key: value`, without =)";
}

constexpr int kLastStage = std::numeric_limits<int>::max();  // stage of the command line

struct Origin {
  int order = 0;  // position in the order of reading, in which mistakes are listed
  int line = 0;
  std::string name;      // file name, or "command line: a=b"
  std::string override;  // key of the override; "" for a file
  int stage = 0;         // position in the order of applying, included files first; kLastStage for all overrides
  std::string place() const { return line ? str(name, ":", line) : name; }
};

struct Problem {
  Origin origin;
  std::string text;
};

std::string no_utf8(std::string_view text) {
  const bool utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
  if (!utf16 && text.find('\0') != std::string_view::npos)
    return "expected settings in YAML, got a binary file. `ringmaster init` writes a file of settings";
  return str(
      "expected UTF-8, got other bytes, which a run's records cannot hold. Write the settings in UTF-8 (iconv -f ",
      utf16 ? "UTF-16" : "LATIN1", " -t UTF-8), and rename files and folders whose names are in another encoding");
}

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

bool inside(const std::string& key, const std::string& prefix) {
  if (prefix.empty() || key == prefix) return true;
  return key.starts_with(prefix) && (key[prefix.size()] == '.' || key[prefix.size()] == '[');
}

std::string parent(const std::string& key) {
  const std::size_t cut = key.find_last_of(".[");
  return cut == std::string::npos ? "" : key.substr(0, cut);
}

// Returns the keys of an ordered set or map that equal `prefix` or are inside it. Visits only keys that start with
// `prefix`.
template <class Keys>
std::vector<typename Keys::const_iterator> keys_inside(const Keys& keys, const std::string& prefix) {
  const auto key_of = [](const auto& entry) -> const std::string& {
    if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, std::string>)
      return entry;
    else
      return entry.first;
  };
  std::vector<typename Keys::const_iterator> found;
  for (auto it = keys.lower_bound(prefix); it != keys.end() && key_of(*it).starts_with(prefix); ++it)
    if (inside(key_of(*it), prefix)) found.push_back(it);
  return found;
}

template <class Keys>
void erase_inside(Keys& keys, const std::string& prefix) {
  for (const auto it : keys_inside(keys, prefix)) keys.erase(it);
}

// Returns a file's canonical path, or its normalized path if the file cannot be accessed.
fs::path whole_name(const fs::path& file) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(file, error);
  return error ? file.lexically_normal() : found;
}

// Returns true if a setting in bytes is given with a unit.
bool has_unit(const Field& field, const YamlNode& yaml) {
  const bool letters = yaml.type == YamlNode::Type::scalar && !yaml.quoted && !yaml.text.empty() &&
                       std::isalpha(static_cast<unsigned char>(yaml.text.back()));
  return letters && std::ranges::any_of(field.checks, is_byte_range) &&
         std::ranges::count(field.node.choices, yaml.text) == 0;
}

// Returns true if the value is a word that the node allows, such as `auto` for an integer.
bool is_word_of(const Node& node, const YamlNode& yaml) {
  return yaml.type == YamlNode::Type::scalar && !yaml.quoted && std::ranges::count(node.choices, yaml.text) > 0;
}

class Loader {
 public:
  explicit Loader(const Node& root) : root_(root) {}

  void read(const Source& source) {
    std::vector<fs::path> open;
    read(source, open);
  }

  void override(const std::string& text);
  bool complete() const { return complete_; }  // true if every file was read; if not, keys may seem to be missing
  void check() { check_section(root_, ""); }
  void check_size();
  void finish();

 private:
  void read(const Source& source, std::vector<fs::path>& open);
  void include(const Source& source, const YamlNode& path, Origin origin, std::vector<fs::path>& open);

  void apply_field(const Field& field, const YamlNode& yaml, const std::string& key, const Origin& origin);
  void apply(const Node& node, const YamlNode& yaml, const std::string& key, Origin origin);
  void apply_section(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin);
  void apply_list(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin);
  void apply_scalar(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin);
  void apply_changes(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin);
  void unknown_key(const Node& section, const std::string& section_key, const std::string& name, Given given,
                   const Origin& origin);
  Node find(const std::string& path, const Origin& origin);

  void check_section(const Node& node, const std::string& key);
  void check_field(const Field& field, const std::string& key);
  void check_value(const Check& check, const Value& value, const std::string& key);
  void validate(const Node& node, const std::string& key);
  bool set_back(const Node& section, const std::string& key, const SettingProblem&);
  int stage_of(const std::string& key) const;

  void problem(const Origin& origin, const std::string& key, const std::string& text);
  void broken_rule(const std::string& section, const SettingProblem&);
  Origin origin_of(const std::string& key) const;
  std::optional<Origin> origin_inside(std::string key, const std::string& section) const;

  const Node& root_;
  std::vector<Problem> problems_;
  std::size_t more_problems_ = 0;  // number of mistakes beyond kMaxProblems
  bool complete_ = true;
  std::set<fs::path> read_;  // files read so far, by canonical path
  std::map<std::string, Origin> origins_;
  std::set<std::string> broken_;     // keys with mistakes
  Origin last_{0, 0, "config", ""};  // origin for keys that were not given
  int order_ = 0, stage_ = 0;
};

void Loader::problem(const Origin& origin, const std::string& key, const std::string& text) {
  broken_.insert(key);
  if (problems_.size() == kMaxProblems) {
    ++more_problems_;
    return;
  }
  const bool named = key.empty() || key == origin.override;
  problems_.push_back({origin, str(origin.place(), ": ", named ? "" : shown(key) + ": ", text)});
}

// Returns where the key was set. If it was not, returns where its innermost parent inside `section` was set. Returns
// nullopt if none was.
std::optional<Origin> Loader::origin_inside(std::string key, const std::string& section) const {
  for (; key != section && !key.empty(); key = parent(key))
    if (const auto it = origins_.find(key); it != origins_.end()) return it->second;
  return std::nullopt;
}

// Returns where the key was set, or else its innermost parent; last_ if none was.
Origin Loader::origin_of(const std::string& key) const { return origin_inside(key, "").value_or(last_); }

void Loader::read(const Source& source, std::vector<fs::path>& open) {
  const int order = ++order_;
  Origin origin{order, 0, source.name, ""};
  YamlNode yaml;
  try {
    yaml = parse_yaml(source.text);
  } catch (const YamlError& e) {
    complete_ = false;
    return problem({order, e.line, source.name, ""}, "", e.what());
  }
  open.push_back(whole_name(source.name));
  read_.insert(open.back());
  const auto is_include = [](const YamlNode::Entry& e) { return e.key == "include"; };
  for (const YamlNode::Entry& entry : yaml.entries) {
    if (is_include(entry)) include(source, entry.value, {order, entry.line, source.name, ""}, open);
  }
  open.pop_back();
  std::erase_if(yaml.entries, is_include);
  origin.stage = ++stage_;
  if (open.empty()) last_ = origin;
  apply_section(root_, yaml, "", origin);
}

void Loader::include(const Source& source, const YamlNode& path, Origin origin, std::vector<fs::path>& open) {
  if (path.type == YamlNode::Type::list) {
    for (const YamlNode& item : path.items) {
      origin.line = item.line;
      if (item.type == YamlNode::Type::list) return problem(origin, "include", "expected a file, got a list");
      include(source, item, origin, open);
    }
    return;
  }
  if (path.type != YamlNode::Type::scalar) return problem(origin, "include", "expected a file, got " + path.describe());
  const fs::path file = fs::path(source.name).parent_path() / path.text;
  const fs::path known = whole_name(file);
  if (std::find(open.begin(), open.end(), known) != open.end())
    return problem(origin, "include", shown(file.string()) + " includes itself");
  if (read_.count(known)) return;
  if (open.size() > kDeepestInclude)
    return problem(origin, "include", str("includes are nested more than ", kDeepestInclude, " levels deep"));
  if (read_.size() >= kMaxFiles) return problem(origin, "include", str("more than ", kMaxFiles, " files are included"));
  Source included;
  try {
    included = read_source(file.lexically_normal().string());
  } catch (const Error& e) {
    complete_ = false;
    return problem(origin, "include", e.what());
  }
  read(included, open);
}

void Loader::apply_field(const Field& field, const YamlNode& yaml, const std::string& key, const Origin& origin) {
  if (!has_unit(field, yaml)) return apply(field.node, yaml, key, origin);
  std::int64_t bytes = 0;
  std::string wrong = parse_bytes(yaml.text, bytes);
  if (wrong.empty()) wrong = one_byte_problem(yaml.text, bytes, field.checks);
  if (!wrong.empty()) {
    origins_[key] = origin;
    return problem(origin, key, wrong);
  }
  YamlNode digits = yaml;
  digits.text = std::to_string(bytes);
  apply(field.node, digits, key, origin);
}

void Loader::apply(const Node& node, const YamlNode& yaml, const std::string& key, Origin origin) {
  if (yaml.line && origin.override.empty()) origin.line = yaml.line;
  switch (node.kind) {
    case Kind::section: return apply_section(node, yaml, key, origin);
    case Kind::list: return apply_list(node, yaml, key, origin);
    case Kind::integer:
    case Kind::number:
      if (node.by_tokens && yaml.type == YamlNode::Type::list) return apply_changes(node, yaml, key, origin);
      [[fallthrough]];
    default: return apply_scalar(node, yaml, key, origin);
  }
}

void Loader::apply_section(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin) {
  if (!key.empty()) origins_[key] = origin;
  if (yaml.type == YamlNode::Type::null) return;
  if (is_word_of(node, yaml)) {
    for (const Field& field : node.fields)
      if (field.node.kind == Kind::integer && is_word_of(field.node, yaml))
        apply_field(field, yaml, join(key, field.name), origin);
    return;
  }
  if (yaml.type != YamlNode::Type::map) {
    const std::string words = node.choices.empty() ? "" : joined(node.choices, ", ") + " or ";
    return problem(origin, key,
                   "expected " + words + "a section of `key: value`, got " + yaml.describe() +
                       hint_at_equals(yaml.text) +
                       (key.empty() ? "" : "; set one of its keys, such as " + first_key(node, key)));
  }
  std::map<std::string, int> seen;
  for (const YamlNode::Entry& entry : yaml.entries) {
    Origin at = origin;
    if (at.override.empty()) at.line = entry.line;
    const auto field =
        std::find_if(node.fields.begin(), node.fields.end(), [&](const Field& f) { return f.name == entry.key; });
    const auto [first, fresh] = seen.insert({entry.key, entry.line});
    if (!fresh) {
      problem(at, join(key, entry.key), str("given twice, first on line ", first->second));
    } else if (field == node.fields.end()) {
      unknown_key(node, key, entry.key, entry.value.type == YamlNode::Type::map ? Given::section : Given::value, at);
    } else {
      apply_field(*field, entry.value, join(key, entry.key), at);
    }
  }
}

void Loader::apply_list(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin) {
  erase_inside(origins_, key);
  origins_[key] = origin;
  if (yaml.type != YamlNode::Type::list) {
    return problem(origin, key, "expected a list such as [a, b], got " + yaml.describe());
  }
  if (yaml.items.size() > node.max_items)
    return problem(origin, key, str("must have at most ", node.max_items, " items, has ", yaml.items.size()));
  erase_inside(broken_, key);
  node.reset(yaml.items.size());
  for (std::size_t i = 0; i < yaml.items.size(); ++i) {
    apply(node.element(i), yaml.items[i], str(key, "[", i, "]"), origin);
  }
}

void Loader::apply_scalar(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin) {
  origins_[key] = origin;
  Value value;
  std::string wrong = parse_value(node, yaml, value, key);
  if (!wrong.empty() && node.kind == Kind::choice && yaml.type == YamlNode::Type::scalar)
    if (const std::string hint = hint_for_value(root_, node, key, yaml.text); !hint.empty()) wrong += "; " + hint;
  if (wrong.empty()) wrong = node.set(value);
  if (!wrong.empty()) return problem(origin, key, wrong);
  broken_.erase(key);
}

void Loader::apply_changes(const Node& node, const YamlNode& yaml, const std::string& key, const Origin& origin) {
  origins_[key] = origin;
  TokenSchedule changes;
  std::string wrong = parse_changes(node, yaml, changes);
  if (wrong.empty())
    wrong = node.set(as_value(node, std::ranges::max_element(changes, {}, &TokenChange::value)->value));
  if (!wrong.empty()) return problem(origin, key, wrong);
  if (changes.size() > 1) *node.by_tokens = changes;
  broken_.erase(key);
}

void Loader::unknown_key(const Node& section, const std::string& section_key, const std::string& name, Given given,
                         const Origin& origin) {
  const std::string full = join(section_key, name);
  if (problems_.size() == kMaxProblems) return problem(origin, full, "");  // only counts the mistake
  std::vector<std::string> siblings;
  for (const Field& f : section.fields) siblings.push_back(f.name);
  // An override gives a whole path, and the unknown key may be only its first part.
  const std::string path = inside(origin.override, full) ? origin.override : full;
  std::string hint = hint_for_word(root_, path, given);
  if (const std::string near = nearest_name(name, siblings); hint.empty() && !near.empty())
    hint = hint_for_key(root_, join(section_key, near), path == full ? given : Given::section);
  if (hint.empty()) hint = hint_for_name(root_, path, given);
  if (hint.empty()) {
    hint = "known keys here:";
    for (const std::string& s : siblings) hint += " " + s;
  }
  problem(origin, full, "unknown key" + hint_at_equals(name) + "; " + hint);
}

// Returns the node at a path such as a.b[2].c. If there is none, reports a problem and returns a default Node.
Node Loader::find(const std::string& path, const Origin& origin) {
  Node node = root_;
  std::string key;
  for (const PathPart& part : split_path(path)) {
    if (part.name.empty()) {
      if (node.kind != Kind::list) return problem(origin, path, key + " is not a list"), Node();
      if (part.index >= node.size()) {
        return problem(origin, path, str(key, " has ", node.size(), " elements, numbered from 0")), Node();
      }
      node = Node(node.element(part.index));
      key += str("[", part.index, "]");
      continue;
    }
    if (node.kind != Kind::section) return problem(origin, path, key + " is not a section"), Node();
    const auto field =
        std::find_if(node.fields.begin(), node.fields.end(), [&](const Field& f) { return f.name == part.name; });
    if (field == node.fields.end()) return unknown_key(node, key, part.name, Given::value, origin), Node();
    key = join(key, part.name);
    node = Node(field->node);
  }
  return node;
}

void Loader::override(const std::string& text) {
  const std::size_t equals = text.find('=');
  Origin origin{++order_, 0, "command line: " + shown(text), text.substr(0, equals), kLastStage};
  if (problems_.empty() && order_ == 1) last_ = {0, 0, "command line", ""};
  if (equals == std::string::npos || equals == 0) return problem(origin, "", "expected key=value");
  if (split_path(origin.override).empty()) return problem(origin, "", "expected a key such as a.b or a[0].b");
  const std::string value = text.substr(equals + 1);
  if (!is_utf8(text)) return problem(origin, origin.override, no_utf8(text));
  const std::size_t before = problems_.size();
  const Node node = find(origin.override, origin);
  if (problems_.size() != before) return;
  try {
    const Field* field = find_field(root_, origin.override);
    const YamlNode yaml = parse_override(node, value);
    field ? apply_field(*field, yaml, origin.override, origin) : apply(node, yaml, origin.override, origin);
  } catch (const YamlError& e) {
    problem(origin, origin.override, e.what());
  }
}

void Loader::check_section(const Node& node, const std::string& key) {
  for (const Field& field : node.fields) check_field(field, join(key, field.name));
  validate(node, key);
}

void Loader::check_field(const Field& field, const std::string& key) {
  const Node& node = field.node;
  if (broken_.count(key)) return;
  if (node.kind == Kind::section) return check_section(node, key);
  const std::size_t size = node.kind == Kind::list ? node.size() : 0;
  for (const Check& check : field.checks) {
    const bool word = node.kind == Kind::integer && std::holds_alternative<std::string>(node.get());
    if (node.scalar() && !word) check_value(check, node.get(), key);
    if (node.by_tokens)
      for (const TokenChange& change : *node.by_tokens)
        if (const Value value = as_value(node, change.value); node.get() != value) check_value(check, value, key);
    if (node.kind == Kind::list && check.of_length) check_value(check, static_cast<std::int64_t>(size), key);
  }
  for (std::size_t i = 0; i < size; ++i) {
    // An element is checked like a field, by all checks except those on the list's length.
    Field element{"", "", field.checks, node.element(i)};
    std::erase_if(element.checks, [](const Check& c) { return c.of_length; });
    check_field(element, str(key, "[", i, "]"));
  }
}

void Loader::check_value(const Check& check, const Value& value, const std::string& key) {
  if (std::holds_alternative<std::monostate>(value) || check.passes(value)) return;
  const bool given = origins_.count(key) > 0;
  if (!given && !complete_) return;
  std::string wrong =
      check.of_length ? std::string("must not be empty") : str("must be ", check.text, ", is ", shown(to_text(value)));
  if (!given) wrong += check.of_length ? ": give it a value" : " by default: give it a value";
  problem(origin_of(key), key, wrong);
}

void Loader::validate(const Node& node, const std::string& key) {
  if (!node.validate || !complete_) return;
  if (key.empty() ? !broken_.empty() : !keys_inside(broken_, key).empty()) return;
  std::vector<SettingProblem> problems;
  do {
    problems.clear();
    node.validate(problems);
  } while (std::erase_if(problems, [&](const SettingProblem& p) { return set_back(node, key, p); }) > 0);
  for (const SettingProblem& p : problems) broken_rule(key, p);
}

int Loader::stage_of(const std::string& key) const {
  const auto it = origins_.find(key);
  return it == origins_.end() ? 0 : it->second.stage;
}

// If the key that makes an inherited setting meaningless was given later than the setting, unsets the setting and
// returns true. Otherwise returns false.
bool Loader::set_back(const Node& section, const std::string& key, const SettingProblem& p) {
  if (p.kind != SettingProblemKind::inherited) return false;
  const std::string cause = join(key, p.cause), full = join(key, p.key);
  const auto field = std::ranges::find(section.fields, p.key, &Field::name);
  if (field == section.fields.end() || stage_of(cause) <= stage_of(full)) return false;
  apply(field->node, parse_override(field->node, p.unset), full, origins_.at(cause));
  return true;
}

// Reports a problem of a section. Puts the section's key in front of the text, unless the text begins with a key that
// is relative to the root.
void Loader::broken_rule(const std::string& section, const SettingProblem& p) {
  const std::string& text = p.text;
  const std::string name = text.substr(0, text.find_first_of(" :,=("));
  const bool given = origins_.count(name) || origins_.count(join(section, name));
  if (p.kind == SettingProblemKind::unused && (!root_.synonyms || !given)) return;
  std::optional<Origin> origin = origin_inside(join(section, name), section);
  if (!origin) origin = origin_inside(name, "");
  problem(origin.value_or(origin_of(section)), !section.empty() && inside(name, section) ? "" : section, text);
}

// Reports settings whose text with all keys is too large. That text is written into the run's directory and its
// checkpoints, and a longer one could not be read again.
void Loader::check_size() {
  if (!problems_.empty()) return;
  const std::size_t size = to_yaml(root_).size();
  if (size > kMaxSettingsBytes)
    problem(last_, "",
            str("too large: with the defaults of all keys, the settings have ", size, " bytes, but at most ",
                kMaxSettingsBytes, " are allowed. Shorten the lists"));
}

void Loader::finish() {
  if (problems_.empty()) return;
  std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.origin.order, a.origin.line) < std::pair(b.origin.order, b.origin.line);
  });
  const std::size_t told = std::min(problems_.size(), kProblemsShown);
  std::string all;
  for (std::size_t i = 0; i < told; ++i) all += (all.empty() ? "" : "\n") + problems_[i].text;
  if (const std::size_t more = problems_.size() - told + more_problems_)
    all += "\nand " + counted(static_cast<std::int64_t>(more), "more mistake");
  throw Error(all);
}

}  // namespace

Source read_source(const std::string& file) {
  Source source{file, read_text_file(file, kMaxSettingsBytes)};
  if (!is_utf8(source.text)) fail(file, ": ", no_utf8(source.text));
  return source;
}

void load(const Node& root, const std::vector<Source>& sources, const std::vector<std::string>& overrides) {
  Loader loader(root);
  for (const Source& source : sources) loader.read(source);
  if (loader.complete())
    for (const std::string& text : overrides) loader.override(text);
  loader.check();
  loader.check_size();
  loader.finish();
}

}  // namespace ring::config
