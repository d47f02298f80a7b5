#include "engine/memory_kinds.h"

#include <algorithm>
#include <limits>

namespace ring {
namespace {

// Returns the maximum bytes in use when a part begins, beyond those at the first part. The last part, the loss head,
// saves nothing for later: its memory is workspace.
std::size_t max_kept(const PlannedStep& p) {
  std::size_t least = std::numeric_limits<std::size_t>::max(), most = 0;
  for (const PartMemory& m : p.parts) {
    if (m.before == 0) continue;  // the optimizer has no forward
    least = std::min(least, m.before);
    most = std::max({most, m.before, m.once_before});
  }
  return std::min(most - std::min(most, least), p.inside_step);
}

}  // namespace

std::vector<MemoryKind> memory_by_kind(const PlannedStep& p) {
  const std::size_t buffers = p.weight_buffers + p.gradient_buffers, kept = max_kept(p);
  const std::size_t states = p.weights + p.gradients + p.optimizer_states;
  return {{"weights", p.weights - p.weight_buffers},
          {"gradients", p.gradients - p.gradient_buffers},
          {"optimizer", p.optimizer_states},
          {"buffers", buffers},
          {"inputs", p.lasting - states},
          {"kept", kept},
          {"work", p.inside_step - kept}};
}

}  // namespace ring
