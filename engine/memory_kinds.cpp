#include "engine/memory_kinds.h"

#include <algorithm>

namespace ring {
namespace {

// Returns the maximum bytes of saved activations: the most bytes in use at the start of any part, minus the bytes in
// use at the start of the first part in the first micro-batch. The last part, the loss head, saves nothing for later:
// its memory is workspace.
std::size_t max_kept(const PlannedStep& p) {
  std::size_t min = kBoundless, max = 0;
  for (const PartMemory& m : p.parts) {
    if (m.before == 0) continue;  // the optimizer has no forward
    min = std::min(min, m.min_before);
    max = std::max({max, m.before, m.once_before});
  }
  return std::min(max - std::min(max, min), p.inside_step);
}

}  // namespace

std::vector<MemoryKind> memory_by_kind(const PlannedStep& p) {
  const std::size_t buffers = p.weight_buffers + p.gradient_buffers, kept = max_kept(p);
  const std::size_t keys = p.peak - p.lasting - p.inside_step;  // of earlier chunks or slices
  const std::size_t states = p.weights + p.gradients + p.optimizer_states;
  return {{"weights", p.weights - p.weight_buffers},
          {"gradients", p.gradients - p.gradient_buffers},
          {"optimizer", p.optimizer_states},
          {"buffers", buffers},
          {"inputs", p.lasting - states},
          {"kept", kept + keys},
          {"work", p.inside_step - kept}};
}

}  // namespace ring
