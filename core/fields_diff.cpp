#include <algorithm>
#include <map>

#include "core/fields.h"
#include "core/yaml.h"

namespace ring {
namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;

std::string flow(const YamlNode& node) {
  switch (node.type) {
    case YamlNode::Type::null: return "null";
    case YamlNode::Type::scalar: return node.quoted ? yaml_text(node.text) : node.text;
    case YamlNode::Type::map: return "{...}";
    case YamlNode::Type::list: break;
  }
  std::string out;
  for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + flow(item);
  return "[" + out + "]";
}

// Lists of scalars are one leaf: a list that grew by one reads better as a whole.
void flatten(const YamlNode& node, const std::string& key, Leaves& leaves) {
  const auto is_map = [](const YamlNode& item) { return item.type == YamlNode::Type::map; };
  if (is_map(node)) {
    for (const auto& e : node.entries) flatten(e.value, key.empty() ? e.key : key + "." + e.key, leaves);
  } else if (std::any_of(node.items.begin(), node.items.end(), is_map)) {
    for (std::size_t i = 0; i < node.items.size(); ++i) flatten(node.items[i], str(key, "[", i, "]"), leaves);
  } else if (!key.empty()) {
    leaves.push_back({key, flow(node)});
  }
}

bool is_ignored(const std::string& key, const std::vector<std::string>& ignore) {
  return std::any_of(ignore.begin(), ignore.end(), [&](const std::string& prefix) {
    return key == prefix || key.starts_with(prefix + ".") || key.starts_with(prefix + "[");
  });
}

// An empty list says nothing beside the other side's elements.
bool is_empty_list(const std::pair<const std::string, std::string>& leaf,
                   const std::map<std::string, std::string>& other) {
  const auto element = other.lower_bound(leaf.first + "[");
  return leaf.second == "[]" && element != other.end() && element->first.starts_with(leaf.first + "[");
}

}  // namespace

std::vector<std::string> diff_yaml(const std::string& old_text, const std::string& new_text,
                                   const std::vector<std::string>& ignore) {
  Leaves old_leaves, new_leaves;
  flatten(parse_yaml(old_text), "", old_leaves);
  flatten(parse_yaml(new_text), "", new_leaves);
  const std::map<std::string, std::string> before(old_leaves.begin(), old_leaves.end());
  const std::map<std::string, std::string> after(new_leaves.begin(), new_leaves.end());
  std::vector<std::string> lines;
  for (const auto& [key, value] : new_leaves) {
    const auto it = before.find(key);
    const std::string was = it == before.end() ? "(absent)" : it->second;
    if (was == value || is_ignored(key, ignore) || is_empty_list({key, value}, before)) continue;
    lines.push_back(key + ": " + was + " -> " + value);
  }
  for (const auto& [key, value] : old_leaves) {
    if (after.count(key) || is_ignored(key, ignore) || is_empty_list({key, value}, after)) continue;
    lines.push_back(key + ": " + value + " -> (absent)");
  }
  return lines;
}

}  // namespace ring
