#pragma once
// The parts of config loading that need no state: scalars, override paths, nearest names.

#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "core/yaml.h"

namespace ring::config {

// Converts to the kind of a scalar node. Returns what is wrong, empty when `value` was filled. key: of the setting,
// whose name tells the unit of a time (train.minutes); empty if there is none.
std::string parse_value(const Node& node, const YamlNode& yaml, Value& value, std::string_view key = {});

// A list of [tokens, value], of the number's kind. Returns what is wrong, empty when `changes` was filled.
std::string parse_changes(const Node& number, const YamlNode& list, TokenSchedule& changes);

// The right side of `key=value`. Text is taken as it stands unless it starts with a quote. YamlError: bad syntax.
YamlNode parse_override(const Node& node, const std::string& value);

// One step of a path a.b[2].c: a name, or an index when the name is empty.
struct PathPart {
  std::string name;
  std::size_t index = 0;
};
std::vector<PathPart> split_path(const std::string& path);  // empty: not a path

// Edits (insert, delete, replace, swap neighbours) between two names.
std::size_t edit_distance(const std::string& a, const std::string& b);

// The name that was probably meant, or "" when none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

// All keys below a node, without list elements.
void collect_keys(const Node& node, const std::string& prefix, std::vector<std::string>& keys);

// The field that a dotted key names; null: there is none.
const Field* find_field(const Node& root, std::string_view key);

// The first key below a section, which is called `key`, that takes a value.
std::string first_key(const Node& section, std::string key);

// What was given with a key that does not exist. A section cannot take the place of a value, but a key in it can.
enum class Given { value, section };

// "did you mean optimizer.lr?", or the advice alone where there is no key.
std::string hint_for_key(const Node& root, const std::string& key, Given, std::string_view advice = "");

// Hints for a key that does not exist, or "".
std::string hint_for_word(const Node& root, const std::string& key, Given);  // by the synonyms
std::string hint_for_name(const Node& root, const std::string& key, Given);  // one elsewhere with the same last part

// For a value that is no choice of `node`, whose key is `key`: by the synonyms, else the nearest one.
std::string hint_for_value(const Node& root, const Node& node, const std::string& key, const std::string& value);

}  // namespace ring::config
