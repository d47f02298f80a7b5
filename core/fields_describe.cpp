// The reference of all keys in Markdown: a table per section.

#include "core/fields.h"

namespace ring::config {
namespace {

// Keeps Markdown from ending the cell or seeing HTML.
std::string cell(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '|') {
      out += "\\|";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string type_name(const Node& node) {
  const std::string null = node.optional ? " or null" : "";
  switch (node.kind) {
    case Kind::boolean: return "true, false" + null;
    case Kind::integer: return "integer" + null;
    case Kind::number: return "number" + null;
    case Kind::text: return "text" + null;
    case Kind::section: return "section";
    case Kind::list: return "list: " + type_name(node.prototype());
    case Kind::choice: break;
  }
  std::string names;
  for (const std::string& c : node.choices) names += (names.empty() ? "`" : ", `") + c + "`";
  return names + null;
}

std::string default_of(const Field& field) {
  const Node& node = field.node;
  const bool empty_list = node.kind == Kind::list && node.size() == 0;
  const bool empty = empty_list || (node.kind == Kind::text && to_text(node.get()) == "\"\"");
  for (const Check& check : field.checks) {
    if (check.of_length && !check.most && empty) return "required";
  }
  if (node.scalar()) return "`" + to_text(node.get()) + "`";
  if (empty_list) return "`[]`";
  std::string items;
  for (std::size_t i = 0; i < node.size(); ++i) {
    const Node element = node.element(i);
    items += (i ? ", " : "") + (element.scalar() ? to_text(element.get()) : std::string("..."));
  }
  return "`[" + items + "]`";
}

std::string range_of(const Field& field) {
  std::string out;
  for (const Check& check : field.checks) out += (out.empty() ? "" : ", ") + check.text;
  return out;
}

void describe_section(const Node& section, const std::string& key, const std::string& text, std::string& out);

void describe_table(const Node& section, const std::string& prefix, std::string& out) {
  std::string rows;
  for (const Field& f : section.fields) {
    if (f.node.kind == Kind::section) continue;
    rows += str("| `", prefix, f.name, "` | ", cell(type_name(f.node)), " | ", cell(default_of(f)), " | ",
                cell(range_of(f)), " | ", cell(f.text), " |\n");
  }
  if (!rows.empty()) out += "\n| key | type | default | range | meaning |\n|---|---|---|---|---|\n" + rows;
}

void describe_section(const Node& section, const std::string& key, const std::string& text, std::string& out) {
  const std::string prefix = key.empty() ? "" : key + ".";
  if (!key.empty()) out += "\n## `" + key + "`\n\n" + text + "\n";
  describe_table(section, prefix, out);
  for (const Field& f : section.fields) {
    if (f.node.kind == Kind::section) describe_section(f.node, prefix + f.name, f.text, out);
    if (f.node.kind != Kind::list) continue;
    const Node element = f.node.prototype();
    if (element.kind == Kind::section) describe_section(element, prefix + f.name + "[]", f.text, out);
  }
}

}  // namespace

std::string describe(const Node& root) {
  std::string out;
  describe_section(root, "", "", out);
  return out.empty() ? out : out.substr(1);  // starts with an empty line
}

}  // namespace ring::config
