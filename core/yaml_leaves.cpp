#include "core/yaml_leaves.h"

#include <algorithm>

#include "core/yaml.h"

namespace ring {
namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;

std::string flow(const YamlNode& node) {
  switch (node.type) {
    case YamlNode::Type::null: return "null";
    case YamlNode::Type::scalar: return node.quoted ? yaml_string(node.text) : node.text;
    case YamlNode::Type::map: return "{...}";
    case YamlNode::Type::list: break;
  }
  std::string out;
  for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + flow(item);
  return "[" + out + "]";
}

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

}  // namespace

std::vector<std::pair<std::string, std::string>> yaml_leaves(const std::string& text) {
  Leaves leaves;
  flatten(parse_yaml(text), "", leaves);
  return leaves;
}

}  // namespace ring
