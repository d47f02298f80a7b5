#pragma once
// Rough estimates of a layout's time from a few formulas, so that a search over thousands of GPUs plans only promising
// layouts.

#include <vector>

#include "engine/planner.h"

namespace ring {

// Sorts layouts of the same settings by their estimated time. Layouts whose states are estimated not to fit come last,
// because they need offloading.
void sort_by_estimate(std::vector<PlanRequest>&);

}  // namespace ring
