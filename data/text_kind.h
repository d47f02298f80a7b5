#pragma once
// Detects files that are not text: a model would learn their binary format.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ring {

inline constexpr std::size_t kKindBytes = 512;  // number of leading bytes of a file that the detection needs

struct ForeignKind {
  std::string_view name;                  // completes "it is ..."
  std::string_view remedy;                // how to convert it to text
  std::string_view without_options = {};  // remedy for a command without --text-field; if empty, same as `remedy`
};

// Returns the format of a file, from its first bytes and the ending of its name; nullopt if it may be text (or, if
// `records`, JSON Lines).
std::optional<ForeignKind> foreign_kind(std::string_view head, const std::string& path, bool records);

bool has_json_lines_name(const std::string& path);  // true if the name ends with .jsonl or .ndjson
bool has_parquet_name(const std::string& path);     // true if the name ends with .parquet

}  // namespace ring
