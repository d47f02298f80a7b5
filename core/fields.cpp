#include "core/fields.h"

#include <algorithm>
#include <string_view>

#include "core/counted.h"
#include "core/yaml.h"

namespace ring {
namespace {

Check number_check(std::string text, std::function<bool(double)> passes) {
  return {std::move(text),
          [passes = std::move(passes)](const config::Value& v) {
            if (const auto* i = std::get_if<std::int64_t>(&v)) return passes(static_cast<double>(*i));
            if (const auto* d = std::get_if<double>(&v)) return *d == *d && passes(*d);
            return false;
          },
          false};
}

}  // namespace

Check positive() {
  return number_check("> 0", [](double v) { return v > 0; });
}
Check at_least(double min) {
  return number_check(">= " + yaml_number(min), [=](double v) { return v >= min; });
}
Check at_most(double max) {
  return number_check("<= " + yaml_number(max), [=](double v) { return v <= max; });
}
Check in_range(double min, double max) {
  return number_check(str("in [", yaml_number(min), ", ", yaml_number(max), "]"),
                      [=](double v) { return v >= min && v <= max; });
}
Check check_number(std::string text, std::function<bool(double)> passes) {
  return number_check(std::move(text), std::move(passes));
}

Check check_text(std::string text, std::function<bool(const std::string&)> passes) {
  return {std::move(text),
          [passes = std::move(passes)](const config::Value& v) {
            const auto* s = std::get_if<std::string>(&v);
            return s && passes(*s);
          },
          false};
}

Check one_of(std::vector<std::string> names) {
  std::string text = "one of ";
  for (const std::string& name : names) text += str(&name == &names[0] ? "" : ", ", name);
  return check_text(text, [names = std::move(names)](const std::string& s) {
    return std::find(names.begin(), names.end(), s) != names.end();
  });
}

Check non_empty() {
  return {"non-empty",
          [](const config::Value& v) {
            if (const auto* s = std::get_if<std::string>(&v)) return !s->empty();
            const auto* length = std::get_if<std::int64_t>(&v);
            return length && *length > 0;
          },
          true};
}

std::uint64_t hash_text(const std::string& text) {
  std::uint64_t h = 14695981039346656037ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

namespace config {

void add_field(std::vector<Field>& fields, Field field) {
  RING_CHECK(!field.name.empty() && field.name.find_first_of(".[]=: ") == std::string::npos, "'", field.name,
             "' cannot be the name of a config field");
  for (const Field& other : fields) {
    RING_CHECK(other.name != field.name, "two config fields of one struct are called ", field.name);
  }
  fields.push_back(std::move(field));
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
    std::string operator()(const std::string& v) const { return yaml_text(v); }
  };
  return std::visit(Visitor(), value);
}

namespace {

// On one line: lists of scalars, and anything inside of such a line.
std::string to_flow(const Node& node) {
  if (node.scalar()) return to_text(node.get());
  std::string out;
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
