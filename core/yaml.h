#pragma once
// YAML text as a plain tree with line numbers, independent of the parser's types.

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
  int line = 0;         // 1-based; 0 if unknown
  std::string text;     // the scalar
  bool quoted = false;  // a scalar in quotes is always text
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  // entries in file order; keys may repeat

  std::string describe() const;  // for messages: `3e-4`, `a list`, `nothing`; long scalars are shortened
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

// Limits of a YAML document. An alias counts as a copy of its anchor's value, so that a short document cannot expand to
// gigabytes.
inline constexpr std::size_t kMaxYamlBytes = 4 << 20;  // for the document, and for the sum of all names and values
inline constexpr int kMaxYamlNodes = 1 << 19;
inline constexpr int kMaxYamlDepth = 64;

// Parses a string with a single document. The limits above bound time and memory. Throws YamlError on bad syntax,
// several documents, keys that are not plain, or an exceeded limit.
YamlNode parse_yaml(const std::string& text);

// Returns foreign text for a message: shortened to its beginning if it is longer than `max` bytes, with control
// characters escaped.
std::string shown(const std::string& text, std::size_t max = 80);

// Returns a string as YAML: plain if every YAML reader reads back the same string, else in double quotes.
std::string yaml_string(const std::string& s);

// Returns the shortest text that reads back as the same number.
std::string yaml_number(double v);

}  // namespace ring
