#pragma once
// YAML text as a plain tree with line numbers: what the config loader needs, without the parser's own types.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ring {

struct YamlNode {
  enum class Type { null, scalar, list, map };
  struct Entry;

  Type type = Type::null;
  int line = 0;         // 1-based; 0: unknown
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes is always text
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  // in the order of the file; a key may occur twice

  std::string describe() const;  // for messages: `3e-4`, `a list`, `nothing`; long ones are cut
};

struct YamlNode::Entry {
  std::string key;
  int line = 0;
  YamlNode value;
};

struct YamlError : Error {
  YamlError(int at, const std::string& what) : Error(what), line(at) {}
  int line;
};

// What a text may hold. Aliases count as what they stand for, so that a short text cannot become gigabytes.
inline constexpr std::size_t kMostYamlBytes = 4 << 20;  // of the text, and of all names and values together
inline constexpr int kMostYamlNodes = 1 << 19;
inline constexpr int kMostYamlDepth = 64;

// The one document of a text, in time and memory that the limits above bound. YamlError: syntax, several documents,
// keys that are not plain, beyond a limit.
YamlNode parse_yaml(const std::string& text);

// What a message shows of a text that somebody else wrote: its beginning where it is longer than `most` bytes, control
// characters escaped.
std::string shown(const std::string& text, std::size_t most = 80);

// A string as YAML: bare where that reads back as the same string everywhere, in double quotes otherwise.
std::string yaml_text(const std::string& s);

// The shortest text that reads back as the same number.
std::string yaml_number(double v);

}  // namespace ring
