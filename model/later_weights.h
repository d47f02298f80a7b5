#pragma once
#include <cstdint>
#include <string>

#include "model/params.h"

namespace ring {

// Weights of one kind that a run may begin or cease to have: its checkpoints may lack them, or have them in vain.
struct LaterWeights {
  ParamList params;
  // Return what the log says if a checkpoint lacks some, whose run has done so many steps, or has some in vain.
  std::string (*missing)(std::int64_t tensors, std::int64_t steps);
  std::string (*unexpected)(std::int64_t tensors);
};

}  // namespace ring
