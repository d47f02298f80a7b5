#pragma once

#include "core/check.h"

namespace ring {

// The settings want another number of processes: what plan_degrees() (parallel/plan.h) throws then.
struct WorldMisfit : Error {
  using Error::Error;
};

}  // namespace ring
