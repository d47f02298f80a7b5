#include "core/fields_parse.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

namespace ring::config {
namespace {

constexpr double kMaxExact = 0x1p53;         // largest integer up to which a double is exact
constexpr std::size_t kMaxTextBytes = 4096;  // maximum length of a string; no system allows longer names or paths

template <class T>
bool read_whole(const std::string& text, T& value) {
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') ++begin;
  const auto [at, error] = std::from_chars(begin, end, value);
  return error == std::errc() && at == end && begin != end;
}

bool read_double(const std::string& text, double& value) {
  if (text == ".inf" || text == "+.inf") return value = HUGE_VAL, true;
  if (text == "-.inf") return value = -HUGE_VAL, true;
  return read_whole(text, value) && std::isfinite(value);  // refuses "inf" and "nan", which from_chars accepts
}

// Returns a number in digits, such as 131072 or 0.05; as 1.5e+12 only if it is not an exact integer.
std::string in_digits(double number) {
  const bool integer = number == std::floor(number) && std::abs(number) <= kMaxExact;
  return integer ? str(static_cast<std::int64_t>(number)) : str(number);
}

struct UnitName {
  std::string_view name;  // name in lower case
  double factor;
};
const UnitName* unit_named(std::span<const UnitName> units, std::string_view name) {
  const auto unit = std::ranges::find(units, name, &UnitName::name);
  return unit == units.end() ? nullptr : &*unit;
}
constexpr UnitName kDecimalUnits[] = {{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"b", 1e9}, {"t", 1e12}};
constexpr UnitName kBinaryUnits[] = {{"ki", 0x1p10}, {"mi", 0x1p20}, {"gi", 0x1p30}, {"ti", 0x1p40}};
constexpr UnitName kTimes[] = {{"s", 1},       {"sec", 1},      {"second", 1},  {"seconds", 1},  {"m", 60},
                               {"min", 60},    {"mins", 60},    {"minute", 60}, {"minutes", 60}, {"h", 3600},
                               {"hour", 3600}, {"hours", 3600}, {"d", 86400},   {"day", 86400},  {"days", 86400}};

// Returns the seconds per unit of a key such as train.minutes; 0 if the key is not a time.
double seconds_in_unit_of(std::string_view key) {
  const std::string_view word = key.substr(key.find_last_of("._") + 1);  // npos + 1 is 0
  const UnitName* unit = word.size() > 3 && word.ends_with("s") ? unit_named(kTimes, word) : nullptr;
  return unit ? unit->factor : 0;
}

// Returns the value of a power such as "2^17"; NaN if the string is not a power.
double power_in(const std::string& text) {
  double base = 0, exponent = 0;
  const std::size_t caret = text.find('^');
  if (caret == std::string::npos || !read_double(text.substr(0, caret), base)) return NAN;
  return read_double(text.substr(caret + 1), exponent) ? std::pow(base, exponent) : NAN;
}

// Returns a hint that gives, in digits, the value of "128K", "128Ki", "131_072", "2^17", "5%" or, for a key in minutes,
// "2h"; "" if the string is none of these.
std::string unit_hint(std::string text, Kind kind, std::string_view key) {
  std::erase(text, '_');
  double number = 0;
  if (read_double(text, number)) return ". Write " + text;
  if (const double power = power_in(text); std::isfinite(power)) return ". Write " + in_digits(power);
  const std::string digits = text.substr(0, text.find_last_of("0123456789.") + 1);
  if (!read_double(digits, number)) return "";
  std::string unit = text.substr(digits.size());
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (const double seconds = seconds_in_unit_of(key); seconds > 0)
    if (const UnitName* time = unit_named(kTimes, unit)) return ". Write " + in_digits(number * time->factor / seconds);
  if (unit == "%") return kind == Kind::number ? ". Write " + in_digits(number / 100) : "";
  if (unit == "k") return str(". Write ", digits, "e3, or ", in_digits(1024 * number), " if k means 1024");
  if (const UnitName* binary = unit_named(kBinaryUnits, unit)) return ". Write " + in_digits(number * binary->factor);
  const UnitName* decimal = unit_named(kDecimalUnits, unit);
  return decimal ? str(". Write ", digits, "e", static_cast<int>(std::log10(decimal->factor))) : "";
}

std::string parse_integer(const std::string& text, Value& value, std::string_view key) {
  std::int64_t i = 0;
  double d = 0;
  if (read_whole(text, i)) return value = i, "";
  if (!read_double(text, d)) return "expected an integer, got " + shown(text) + unit_hint(text, Kind::integer, key);
  if (d != std::floor(d)) return "expected an integer, got " + shown(text);
  if (!(std::abs(d) < 0x1p63)) return "expected a 64-bit integer, got " + shown(text);
  return value = static_cast<std::int64_t>(d), "";
}

std::string parse_choice(const std::string& text, const std::vector<std::string>& choices, Value& value) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return value = text, "";
  std::string wrong = "expected one of ";
  for (const std::string& c : choices) wrong += (&c == &choices[0] ? "" : ", ") + c;
  return wrong + ", got " + shown(text);
}

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::boolean: return "true or false";
    case Kind::integer: return "an integer";
    case Kind::number: return "a number";
    case Kind::text: return "text";
    case Kind::choice: return "a name";
    case Kind::section: return "a section";
    case Kind::list: return "a list";
  }
  return "?";
}

}  // namespace

std::string parse_value(const Node& node, const YamlNode& yaml, Value& value, std::string_view key) {
  const std::string expected = "expected " + kind_name(node.kind) + ", got " + yaml.describe();
  if (yaml.type == YamlNode::Type::null) {
    if (node.optional) return value = std::monostate(), "";
    return expected + (node.kind == Kind::text ? " (write \"\" for an empty string)" : "");
  }
  if (yaml.type != YamlNode::Type::scalar) return expected;
  if (node.kind == Kind::text) {
    if (yaml.text.size() > kMaxTextBytes)
      return str("must have at most ", kMaxTextBytes, " bytes, has ", yaml.text.size());
    return value = yaml.text, "";
  }
  if (node.kind == Kind::choice) return parse_choice(yaml.text, node.choices, value);
  if (yaml.quoted) return expected;
  if (node.kind == Kind::integer && std::ranges::count(node.choices, yaml.text) > 0) return value = yaml.text, "";
  if (node.kind == Kind::integer) return parse_integer(yaml.text, value, key);
  if (node.kind == Kind::number) {
    double d = 0;
    return read_double(yaml.text, d) ? (value = d, "") : expected + unit_hint(yaml.text, Kind::number, key);
  }
  if (yaml.text != "true" && yaml.text != "false") return expected;
  return value = yaml.text == "true", "";
}

namespace {

// Parses one number of a [tokens, value] pair. Returns what is wrong, or "".
std::string parse_part(Kind kind, const YamlNode& yaml, double& number) {
  Value value;
  Node node;
  node.kind = kind;
  if (std::string wrong = parse_value(node, yaml, value); !wrong.empty()) return wrong;
  number = kind == Kind::integer ? static_cast<double>(std::get<std::int64_t>(value)) : std::get<double>(value);
  return kind == Kind::integer && std::abs(number) > kMaxExact ? "expected an integer of at most 2^53" : "";
}

}  // namespace

std::string parse_changes(const Node& number, const YamlNode& list, TokenSchedule& changes) {
  if (list.items.size() > kMaxTokenChanges)
    return str("must have at most ", kMaxTokenChanges, " items, has ", list.items.size());
  const char* const form = number.kind == Kind::integer
                               ? "expected [tokens, integer], such as in [[0, 32], [1e9, 64]]"
                               : "expected [tokens, number], such as in [[0, 0.9], [1e9, 0.5]]";
  changes.clear();
  for (const YamlNode& item : list.items) {
    double tokens = 0;
    TokenChange change;
    if (item.type != YamlNode::Type::list || item.items.size() != 2) return str(form, ", got ", item.describe());
    if (std::string wrong = parse_part(Kind::integer, item.items[0], tokens); !wrong.empty()) return wrong;
    if (std::string wrong = parse_part(number.kind, item.items[1], change.value); !wrong.empty()) return wrong;
    change.tokens = static_cast<std::int64_t>(tokens);
    if (changes.empty() && change.tokens != 0) return str("must begin at 0 tokens, begins at ", change.tokens);
    if (!changes.empty() && change.tokens <= changes.back().tokens)
      return str("tokens must ascend, but ", change.tokens, " comes after ", changes.back().tokens);
    changes.push_back(change);
  }
  return changes.empty() ? "must not be empty" : "";
}

YamlNode parse_override(const Node& node, const std::string& value) {
  const bool quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
  const bool unset = node.optional && (value.empty() || value == "null" || value == "~");
  if (node.kind != Kind::text || quoted || unset) return parse_yaml(value);
  YamlNode text;
  text.type = YamlNode::Type::scalar;
  text.text = value;
  return text;
}

std::vector<PathPart> split_path(const std::string& path) {
  std::vector<PathPart> parts;
  std::size_t at = 0;
  while (at < path.size()) {
    if (path[at] == '[' && at > 0) {
      PathPart part;
      const auto [end, error] = std::from_chars(path.data() + at + 1, path.data() + path.size(), part.index);
      at = static_cast<std::size_t>(end - path.data());
      if (error != std::errc() || at >= path.size() || path[at] != ']') return {};
      parts.push_back(part);
      ++at;
      continue;
    }
    if (at > 0 && path[at++] != '.') return {};
    const std::size_t end = std::min(path.find_first_of(".[", at), path.size());
    if (end == at) return {};
    parts.push_back({path.substr(at, end - at)});
    at = end;
  }
  return parts;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  if (name.size() > 100) return "";
  for (const std::string& k : known) {
    const std::size_t distance = edit_distance(name, k);
    if (distance < best_distance) best = k, best_distance = distance;
  }
  return best;
}

void collect_keys(const Node& node, const std::string& prefix, std::vector<std::string>& keys) {
  for (const Field& f : node.fields) {
    const std::string key = prefix.empty() ? f.name : prefix + "." + f.name;
    keys.push_back(key);
    collect_keys(f.node, key, keys);
  }
}

const Field* find_field(const Node& root, std::string_view key) {
  const std::size_t dot = key.find('.');
  const auto field = std::ranges::find(root.fields, key.substr(0, dot), &Field::name);
  if (field == root.fields.end()) return nullptr;
  return dot == std::string_view::npos ? &*field : find_field(field->node, key.substr(dot + 1));
}

namespace {

std::string plain(std::string word) {  // Num-Layers -> num_layers
  for (char& c : word) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

bool ends_in(std::string_view path, std::string_view end) {
  return path.ends_with(end) && (path.size() == end.size() || path[path.size() - end.size() - 1] == '.');
}

bool is_section(std::string_view key) { return !key.empty() && key.find('.') == std::string_view::npos; }

// Returns whether a section around the key has this name.
bool is_inside(std::string_view path, std::string_view section) {
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (ends_in(path.substr(0, dot), section)) return true;
  return false;
}

const Node* find(const Node& root, std::string_view key) {
  const Node* node = &root;
  for (std::size_t at = 0; node && at < key.size();) {
    const std::size_t end = std::min(key.find('.', at), key.size());
    const auto field = std::ranges::find(node->fields, key.substr(at, end - at), &Field::name);
    node = field == node->fields.end() ? nullptr : &field->node;
    at = end + 1;
  }
  return node;
}

std::string with_advice(std::string_view name, std::string_view advice) {
  return str("did you mean ", name, "?", advice.empty() ? "" : " ", advice);
}

}  // namespace

std::string first_key(const Node& section, std::string key) {
  for (const Node* node = &section; !node->fields.empty(); node = &node->fields.front().node)
    key += "." + node->fields.front().name;
  return key;
}

std::string hint_for_key(const Node& root, const std::string& key, Given given, std::string_view advice) {
  if (key.empty()) return std::string(advice);
  const Node* node = given == Given::value ? find(root, key) : nullptr;
  if (!node || node->kind != Kind::section) return with_advice(key, advice);
  return with_advice("a key of " + key + ", such as " + first_key(*node, key), advice);
}

std::string hint_for_word(const Node& root, const std::string& key, Given given) {
  const std::string word = plain(key);
  const Synonyms::Key *best = nullptr, *around = nullptr;  // longest match with the key, and with a section
  const auto improves = [](const Synonyms::Key& s, const Synonyms::Key* to) {
    return !to || s.word.size() > to->word.size();
  };
  if (root.synonyms)
    for (const Synonyms::Key& s : root.synonyms->keys) {
      if (ends_in(word, s.word) && improves(s, best)) best = &s;
      if (!is_section(s.key) && is_inside(word, s.word) && improves(s, around)) around = &s;
    }
  if (!best) best = around;
  return best ? hint_for_key(root, std::string(best->key), given, best->advice) : "";
}

std::string hint_for_name(const Node& root, const std::string& key, Given given) {
  const std::string word = plain(key), last = word.substr(word.rfind('.') + 1);
  std::vector<std::string> keys;
  collect_keys(root, "", keys);
  const auto found = std::ranges::find_if(keys, [&](const std::string& k) { return ends_in(k, last); });
  return found == keys.end() ? "" : hint_for_key(root, *found, given);
}

std::string hint_for_value(const Node& root, const Node& node, const std::string& key, const std::string& value) {
  const std::string word = plain(value);
  if (root.synonyms)
    for (const Synonyms::Value& s : root.synonyms->values)
      if (s.word == word && ends_in(key, s.key))
        return s.value.empty() ? std::string(s.advice) : with_advice(s.value, s.advice);
  const std::string near = nearest_name(word, node.choices);
  return near.empty() ? "" : with_advice(near, "");
}

}  // namespace ring::config
