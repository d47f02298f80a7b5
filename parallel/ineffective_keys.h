#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "parallel/plan.h"

namespace ring {

// Returns a warning for each valid setting of `parallel` that differs from its default but has no effect in this run,
// and for pipeline stages with a single micro-batch that is not divided into slices. Each warning names the key, the
// reason and the remedy.
std::vector<std::string> ineffective_keys(const ParallelPlan&, const ModelConfig& resolved);

}  // namespace ring
