#pragma once
// Stateless parts of config loading: scalars, override paths, nearest names.

#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "core/yaml.h"

namespace ring::config {

// Converts YAML to the kind of a scalar node. Returns what is wrong, or "" if `value` was set. `key` is the setting's
// key, whose name may contain a unit of time (train.minutes); "" if there is none.
std::string parse_value(const Node& node, const YamlNode& yaml, Value& value, std::string_view key = {});

// Parses a list of [tokens, value] pairs, with values of the number's kind. Returns what is wrong, or "" if `changes`
// was set.
std::string parse_changes(const Node& number, const YamlNode& list, TokenSchedule& changes);

// Parses the right side of `key=value`. Text is taken literally unless it starts with a quote. Throws YamlError on bad
// syntax.
YamlNode parse_override(const Node& node, const std::string& value);

// One step of a path a.b[2].c: a name, or an index if the name is empty.
struct PathPart {
  std::string name;
  std::size_t index = 0;
};
std::vector<PathPart> split_path(const std::string& path);  // returns {} if it is not a path

// Returns the edit distance of two names. An edit inserts, deletes or replaces a character, or swaps two neighbours.
std::size_t edit_distance(const std::string& a, const std::string& b);

// Returns the known name that was probably meant; "" if none is similar.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

// Collects all keys below a node, except those of list elements.
void collect_keys(const Node& node, const std::string& prefix, std::vector<std::string>& keys);

// Returns the field with a dotted key; null if there is none.
const Field* find_field(const Node& root, std::string_view key);

// Returns the full name of the first key inside a section that takes a value. `key` is the section's own key.
std::string first_key(const Node& section, std::string key);

// The kind of value that was given with an unknown key. A hint must not suggest a section in place of a value, but may
// suggest a key inside it.
enum class Given { value, section };

// Returns "did you mean optimizer.lr?", or only the advice if `key` is "".
std::string hint_for_key(const Node& root, const std::string& key, Given, std::string_view advice = "");

// Returns a hint for an unknown key by means of the synonyms, or "".
std::string hint_for_word(const Node& root, const std::string& key, Given);
// Returns a hint that names a key elsewhere with the same last part, or "".
std::string hint_for_name(const Node& root, const std::string& key, Given);

// Returns a hint for a value that is not a choice of `node`, whose key is `key`: from the synonyms, or the nearest
// choice.
std::string hint_for_value(const Node& root, const Node& node, const std::string& key, const std::string& value);

}  // namespace ring::config
