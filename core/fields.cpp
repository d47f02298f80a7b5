#include "core/fields.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/counted.h"
#include "core/yaml.h"

namespace ring {
namespace {

// Returns an end of a range as text, with all digits of integers.
std::string limit_text(long double v) {
  const bool whole = std::fabs(v) < 0x1p63L && v == std::floor(v) && std::fabs(v) > 0x1p53L;
  return whole ? std::to_string(static_cast<std::int64_t>(v)) : yaml_number(static_cast<double>(v));
}

}  // namespace

Check check_number(std::string text, std::function<bool(long double)> passes) {
  Check check;
  check.text = std::move(text);
  check.passes = [passes = std::move(passes)](const config::Value& v) {
    if (const auto* i = std::get_if<std::int64_t>(&v)) return passes(static_cast<long double>(*i));
    if (const auto* d = std::get_if<double>(&v)) return *d == *d && passes(static_cast<long double>(*d));
    return false;
  };
  return check;
}

Check positive() {
  Check check = check_number("> 0", [](long double v) { return v > 0; });
  check.min = 0;
  return check;
}
Check at_least(long double min) {
  Check check = check_number(">= " + limit_text(min), [=](long double v) { return v >= min; });
  check.min = min;
  return check;
}
Check at_most(long double max) {
  Check check = check_number("<= " + limit_text(max), [=](long double v) { return v <= max; });
  check.max = max;
  return check;
}
Check in_range(long double min, long double max) {
  Check check = check_number(str("in [", limit_text(min), ", ", limit_text(max), "]"),
                             [=](long double v) { return v >= min && v <= max; });
  check.min = min;
  check.max = max;
  return check;
}
Check at_most_items(std::size_t max) {
  Check check = at_most(static_cast<long double>(max));
  check.text = str("at most ", max, " items");
  check.of_length = true;
  return check;
}

Check check_text(std::string text, std::function<bool(const std::string&)> passes) {
  Check check;
  check.text = std::move(text);
  check.passes = [passes = std::move(passes)](const config::Value& v) {
    const auto* s = std::get_if<std::string>(&v);
    return s && passes(*s);
  };
  return check;
}

Check one_of(std::vector<std::string> names) {
  std::string text = "one of ";
  for (const std::string& name : names) text += str(&name == &names[0] ? "" : ", ", name);
  return check_text(text, [names = std::move(names)](const std::string& s) {
    return std::find(names.begin(), names.end(), s) != names.end();
  });
}

Check non_empty() {
  Check check;
  check.text = "non-empty";
  check.passes = [](const config::Value& v) {
    if (const auto* s = std::get_if<std::string>(&v)) return !s->empty();
    const auto* length = std::get_if<std::int64_t>(&v);
    return length && *length > 0;
  };
  check.of_length = true;
  return check;
}

std::uint64_t hash_text(const std::string& text, std::uint64_t previous_hash) {
  std::uint64_t h = previous_hash;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

namespace config {

namespace {

// Throws Error unless the number has both ends of a range that fits its type. Code that narrows or multiplies the
// number relies on its range.
void require_range(const std::string& name, const Node& number, const std::vector<Check>& checks) {
  std::optional<long double> min, max;
  for (const Check& check : checks) {
    if (check.of_length) continue;
    if (check.min) min = std::max(min.value_or(*check.min), *check.min);
    if (check.max) max = std::min(max.value_or(*check.max), *check.max);
  }
  RING_CHECK(min && max, name, ": a number needs both ends of its range, in_range(least, most)");
  RING_CHECK(*min >= number.type_min && *max <= number.type_max, name, ": its range from ", *min, " to ", *max,
             " does not fit into its type");
}

void require_limits(Field& field) {
  const auto number = [](const Node& node) { return node.kind == Kind::integer || node.kind == Kind::number; };
  if (number(field.node)) require_range(field.name, field.node, field.checks);
  if (field.node.kind != Kind::list) return;
  for (const Check& check : field.checks)
    if (check.of_length && check.max) field.node.max_items = static_cast<std::size_t>(*check.max);
  RING_CHECK(field.node.max_items > 0, field.name, ": a list needs a maximum length, at_most_items(max)");
  if (const Node element = field.node.prototype(); number(element)) require_range(field.name, element, field.checks);
}

}  // namespace

void add_field(std::vector<Field>& fields, Field field) {
  require_limits(field);
  RING_CHECK(!field.name.empty() && field.name.find_first_of(".[]=: ") == std::string::npos, "'", field.name,
             "' cannot be the name of a config field");
  for (const Field& other : fields) {
    RING_CHECK(other.name != field.name, "two config fields of one struct have the name ", field.name);
  }
  fields.push_back(std::move(field));
}

void add_word(Node& integer, const Word& word) {
  if (integer.kind == Kind::section) return integer.choices.push_back(word.name);
  RING_CHECK(integer.kind == Kind::integer, "'", word.name,
             "' can stand only for the value of an integer field or a section");
  integer.choices.push_back(word.name);
  integer.get = [word, get = integer.get]() -> Value {
    const Value value = get();
    return value == Value(word.value) ? Value(word.name) : value;
  };
  integer.set = [word, set = integer.set](const Value& v) {
    if (v == Value(word.value)) return str("expected ", word.name, " in place of this number");
    return set(v == Value(word.name) ? Value(word.value) : v);
  };
}

// Gives the number a schedule by tokens. Setting a single number clears the schedule: the setting is then constant.
void add_word(Node& number, const ByTokens& schedule) {
  RING_CHECK(number.kind == Kind::integer || number.kind == Kind::number, "only a number changes by tokens");
  number.by_tokens = schedule.changes;
  number.set = [changes = schedule.changes, set = number.set](const Value& v) {
    std::string wrong = set(v);
    if (wrong.empty()) changes->clear();
    return wrong;
  };
}

Value as_value(const Node& number, double value) {
  return number.kind == Kind::integer ? Value(static_cast<std::int64_t>(value)) : Value(value);
}

std::string integer_out_of_range(std::int64_t min, std::uint64_t max) {
  return str("must be in [", min, ", ", max, "]");
}

std::string to_text(const Value& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return yaml_number(v); }
    std::string operator()(const std::string& v) const { return yaml_string(v); }
  };
  return std::visit(Visitor(), value);
}

namespace {

// Returns a node as YAML on one line (flow style). Used for scalars, lists of scalars, and nodes inside such a line.
std::string to_flow(const Node& node) {
  std::string out;
  if (node.by_tokens && !node.by_tokens->empty()) {
    for (const auto& [tokens, value] : *node.by_tokens)
      out += str(out.empty() ? "" : ", ", "[", tokens, ", ", to_text(as_value(node, value)), "]");
    return str("[", out, "]");
  }
  if (node.scalar()) return to_text(node.get());
  if (node.kind == Kind::list) {
    for (std::size_t i = 0; i < node.size(); ++i) out += str(i ? ", " : "", to_flow(node.element(i)));
    return str("[", out, "]");
  }
  for (const Field& f : node.fields) out += str(out.empty() ? "" : ", ", f.name, ": ", to_flow(f.node));
  return str("{", out, "}");
}

std::string to_block(const Node& section, const std::string& indent);

std::string list_of_sections(const Node& list, const std::string& indent) {
  std::string out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string item = to_block(list.element(i), indent + "    ");
    item.replace(indent.size() + 2, 2, "- ");
    out += item;
  }
  return out;
}

std::string to_block(const Node& section, const std::string& indent) {
  std::string out;
  for (const Field& f : section.fields) {
    const bool sections = f.node.kind == Kind::list && f.node.size() && !f.node.element(0).fields.empty();
    if (sections) {
      out += str(indent, f.name, ":\n", list_of_sections(f.node, indent));
    } else if (!f.node.fields.empty()) {
      out += str(indent, f.name, ":\n", to_block(f.node, indent + "  "));
    } else {
      out += str(indent, f.name, ": ", to_flow(f.node), "\n");
    }
  }
  return out;
}

}  // namespace

std::string to_yaml(const Node& root) { return to_block(root, ""); }

namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

void collect_global(const Node& node, const std::string& key, Values& values) {
  if (node.kind == Kind::list && !node.prototype().fields.empty()) {
    values.push_back({key, counted(static_cast<std::int64_t>(node.size()), "element")});
    for (std::size_t i = 0; i < node.size(); ++i) collect_global(node.element(i), str(key, "[", i, "]"), values);
  } else if (node.kind == Kind::section) {
    for (const Field& f : node.fields)
      if (!f.rank_local) collect_global(f.node, key.empty() ? f.name : key + "." + f.name, values);
  } else {
    values.push_back({key, to_flow(node)});
  }
}

}  // namespace

Values global_values(const Node& root) {
  Values values;
  collect_global(root, "", values);
  return values;
}

}  // namespace config
}  // namespace ring
