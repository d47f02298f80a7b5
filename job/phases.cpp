#include "job/phases.h"

#include <array>

namespace ring {

std::string_view to_string(RunPhase p) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(RunPhase::count)> names = {
      "start",    "load",     "data",    "forward", "backward", "reduce", "optimizer", "finish",
      "validate", "snapshot", "nothing", "write",   "sync",     "commit", "read_back"};
  return p < RunPhase::count ? names[static_cast<std::size_t>(p)] : "unknown";
}

}  // namespace ring
