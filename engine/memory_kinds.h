#pragma once
// What the memory of a planned step is for.

#include <vector>

#include "engine/planner.h"

namespace ring {

struct MemoryKind {
  const char* name;
  std::size_t bytes;
};

// All of PlannedStep::peak, in this order: weights (with master copies and train.ema), gradients, optimizer states (or
// their chunks on the way from the host), buffers that parts of the model take turns in (parallel.zero 2 and 3), inputs
// and all else that lasts, activations that are kept between forward and backward (the most of them), and work space,
// messages between slices and around the ring included.
std::vector<MemoryKind> memory_by_kind(const PlannedStep&);

}  // namespace ring
