#pragma once
// Breaks down the memory of a planned step by purpose.

#include <vector>

#include "engine/planner.h"

namespace ring {

struct MemoryKind {
  const char* name;
  std::size_t bytes;
};

// Returns a breakdown of PlannedStep::peak, in this order:
// * weights (with master copies and train.ema)
// * gradients
// * optimizer states (or their chunks in transit from the host)
// * buffers that parts of the model take turns in using (parallel.zero 2 and 3)
// * inputs and everything else that outlives a step
// * activations saved for the backward, at their maximum, plus keys of earlier chunks or slices
// * workspace, including messages of tensor and context parallelism
std::vector<MemoryKind> memory_by_kind(const PlannedStep&);

}  // namespace ring
