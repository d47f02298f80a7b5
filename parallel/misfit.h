#pragma once

#include "core/check.h"

namespace ring {

// Thrown by plan_degrees() (parallel/plan.h) if the settings need a different number of processes.
struct WorldMisfit : Error {
  using Error::Error;
};

}  // namespace ring
