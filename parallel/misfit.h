#pragma once

#include "core/check.h"

namespace ring {

// Thrown by plan_degrees() (parallel/plan.h) if the settings need a different number of processes.
struct WorldSizeError : Error {
  using Error::Error;
};

}  // namespace ring
