#pragma once
#include <cstdint>
#include <string>

#include "model/params.h"

namespace ring {

// Weights of one kind that a run may start or stop using, so that its checkpoints may lack them or have unneeded ones.
struct LaterWeights {
  ParamList params;
  // Return the log message for a checkpoint that lacks `tensors` of these weights after `steps` steps, or has `tensors`
  // unneeded ones.
  std::string (*missing)(std::int64_t tensors, std::int64_t steps);
  std::string (*unexpected)(std::int64_t tensors);
};

}  // namespace ring
