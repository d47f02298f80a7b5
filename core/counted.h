#pragma once
// Numbers for messages, with the singular or plural of a noun.

#include <cstdint>
#include <string>
#include <string_view>

namespace ring {

// Returns "1 thread", "2 threads", "0 processes".
inline std::string counted(std::int64_t n, std::string_view thing) {
  std::string text = std::to_string(n) + " " + std::string(thing);
  if (n != 1) text += thing.ends_with("s") || thing.ends_with("ch") ? "es" : "s";
  return text;
}

}  // namespace ring
