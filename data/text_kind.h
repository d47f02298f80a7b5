#pragma once
// Files that are no text: what a model would learn of them is how they are packed.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ring {

inline constexpr std::size_t kKindBytes = 512;  // what decides lies in the first so many bytes

struct ForeignKind {
  std::string_view name;                  // as "it is ..." goes on
  std::string_view remedy;                // what makes text of it
  std::string_view without_options = {};  // the same of a command that has no --text-field; empty: `remedy`
};

// What a file is by its first bytes and the end of its name; nothing: it may be text, or `records`, JSON Lines.
std::optional<ForeignKind> foreign_kind(std::string_view head, const std::string& path, bool records);

bool named_json_lines(const std::string& path);  // .jsonl or .ndjson
bool named_parquet(const std::string& path);     // .parquet

}  // namespace ring
