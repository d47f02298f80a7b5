// Writes the reference of all keys in Markdown: a heading per section, and a list item per key.

#include <sstream>

#include "core/fields.h"
#include "core/joined.h"

namespace ring::config {
namespace {

constexpr std::size_t kColumns = 120;

// Escapes text that Markdown would take for HTML.
std::string escape_html(const std::string& s) {
  std::string out;
  for (const char c : s) out += c == '<' ? std::string("&lt;") : std::string(1, c);
  return out;
}

// Returns true if the word, at the start of a line, would begin a list, a quote or a heading.
bool is_marker(const std::string& word) {
  return word.size() == 1 && std::string("-+*>#").find(word[0]) != std::string::npos;
}

// Wraps words into lines of at most kColumns. The first line begins with `first`, the others with `indent`.
std::string wrap(const std::string& text, const std::string& first, const std::string& indent) {
  std::istringstream words(text);
  std::string out, line = first, gap, word;
  while (words >> word) {
    // Leaves 2 columns for a marker that may follow.
    if (line.size() + gap.size() + word.size() > kColumns - 2 && !is_marker(word)) {
      out += line + "\n";
      line = indent, gap.clear();
    }
    line += gap + word;
    gap = " ";
  }
  return out + line + "\n";
}

std::string type_name(const Node& node) {
  const std::string null = node.optional ? " or null" : "";
  switch (node.kind) {
    case Kind::boolean: return "`true` or `false`" + null;
    case Kind::integer:
      return "integer" + (node.choices.empty() ? "" : " or `" + joined(node.choices, "`, `") + "`") +
             (node.by_tokens ? " or `[[0, integer], [tokens, integer], ...]`" : "") + null;
    case Kind::number:
      return std::string("number") + (node.by_tokens ? " or `[[0, number], [tokens, number], ...]`" : "") + null;
    case Kind::text: return "text" + null;
    case Kind::section: return "section";
    case Kind::list: return "list of " + type_name(node.prototype()) + "s";
    case Kind::choice: break;
  }
  std::vector<std::string> names;
  for (const std::string& c : node.choices) names.push_back("`" + c + "`");
  return joined(names, ", ") + null;
}

std::string default_of(const Field& field) {
  const Node& node = field.node;
  const bool empty_list = node.kind == Kind::list && node.size() == 0;
  const bool empty = empty_list || (node.kind == Kind::text && to_text(node.get()) == "\"\"");
  for (const Check& check : field.checks) {
    if (check.of_length && !check.max && empty) return "required";
  }
  if (node.scalar()) return "default `" + to_text(node.get()) + "`";
  if (empty_list) return "default `[]`";
  std::string items;
  for (std::size_t i = 0; i < node.size(); ++i) {
    const Node element = node.element(i);
    items += (i ? ", " : "") + (element.scalar() ? to_text(element.get()) : std::string("..."));
  }
  return "default `[" + items + "]`";
}

// Returns a field's type, range and default: "integer, in [0, 4096], default `0`".
std::string values_of(const Field& field) {
  std::vector<std::string> parts{type_name(field.node)};
  for (const Check& check : field.checks) parts.push_back(check.text);
  parts.push_back(default_of(field));
  return joined(parts, ", ");
}

// Returns a link to the field's page, which is in the folder of the reference.
std::string more_about(const Field& f) {
  return f.page.empty() ? "" : str(" ([", f.page.substr(0, f.page.find(".md")), "](", f.page, "))");
}

void describe_section(const Node& section, const std::string& key, const std::string& text, std::string& out);

// Appends all keys of a section. The hard line break after the values starts the description on its own line.
void describe_keys(const Node& section, const std::string& prefix, std::string& out) {
  out += "\n";
  for (const Field& f : section.fields) {
    if (f.node.kind == Kind::section) continue;
    out += wrap(escape_html(str("**`", prefix, f.name, "`** (", values_of(f), ")\\")), "* ", "  ");
    out += wrap(escape_html(f.text + more_about(f)), "  ", "  ");
  }
}

void describe_section(const Node& section, const std::string& key, const std::string& text, std::string& out) {
  const std::string prefix = key.empty() ? "" : key + ".";
  if (!key.empty()) out += "\n## `" + key + "`\n\n" + wrap(escape_html(text), "", "");
  describe_keys(section, prefix, out);
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
  return out.empty() ? out : out.substr(1);  // without the leading empty line
}

}  // namespace ring::config
