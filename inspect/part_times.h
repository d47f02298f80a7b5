#pragma once
// Compares the planner's predicted times with a profile, for each part of the model. Blocks are grouped by what they
// save, recompute and offload.

#include <string>
#include <vector>

#include "engine/memory/cost_model.h"
#include "inspect/profile.h"
#include "model/activation_plan.h"

namespace ring {

// Seconds per step.
struct PassTime {
  double predicted = 0;  // time that the planner expects for the kernels that ran
  double measured = 0;   // profiled time of the same kernels
  double waiting = 0;    // time within the part when no kernel ran: waits for copies, other ranks or the host
};

struct PartTimes {
  std::string name;  // e.g. "embedding", "12 blocks recompute the MLP", "optimizer"
  PassTime forward, backward;
};

// Returns the parts in the order in which they first ran. Kernels outside all parts are counted as "other".
std::vector<PartTimes> part_times(const Profile&, const ActivationPlan&, const DeviceRates&, Precision);

std::string part_times_table(const std::vector<PartTimes>&, const DeviceRates&);

}  // namespace ring
