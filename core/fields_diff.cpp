#include <algorithm>
#include <map>

#include "core/fields.h"
#include "core/yaml_leaves.h"

namespace ring {
namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;

bool is_ignored(const std::string& key, const std::vector<std::string>& ignore) {
  return std::any_of(ignore.begin(), ignore.end(), [&](const std::string& prefix) {
    return key == prefix || key.starts_with(prefix + ".") || key.starts_with(prefix + "[");
  });
}

// Returns true for an empty list that has elements on the other side. The elements' lines already show the difference.
bool is_empty_list(const std::pair<const std::string, std::string>& leaf,
                   const std::map<std::string, std::string>& other) {
  const auto element = other.lower_bound(leaf.first + "[");
  return leaf.second == "[]" && element != other.end() && element->first.starts_with(leaf.first + "[");
}

}  // namespace

std::vector<std::string> diff_yaml(const std::string& old_text, const std::string& new_text,
                                   const std::vector<std::string>& ignore) {
  const Leaves old_leaves = yaml_leaves(old_text), new_leaves = yaml_leaves(new_text);
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
