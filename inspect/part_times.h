#pragma once
// How far the planner's times are from those of a profile: per part of the model, its blocks by what they do with their
// activations.

#include <string>
#include <vector>

#include "engine/memory/cost_model.h"
#include "inspect/profile.h"
#include "model/activation_plan.h"

namespace ring {

// Seconds per step.
struct PassTime {
  double predicted = 0;  // of the kernels that ran, at the planner's rates
  double measured = 0;   // of the same kernels
  double waiting = 0;    // between them, within the part: for copies, other ranks and the host
};

struct PartTimes {
  std::string name;  // "embedding", "12 blocks compute the MLP again", "optimizer"
  PassTime forward, backward;
};

// In the order in which they first ran. What ran in no part of the model is "other".
std::vector<PartTimes> part_times(const Profile&, const ActivationPlan&, const DeviceRates&, Precision);

std::string part_times_table(const std::vector<PartTimes>&, const DeviceRates&);

}  // namespace ring
