#pragma once
// Joins the words of a message: joined({"a", "b"}, ", ") is "a, b".

#include <string>
#include <vector>

namespace ring {

inline std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace ring
