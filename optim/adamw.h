#pragma once
// AdamW (Loshchilov and Hutter 2019): one kernel call for each range that is updated alike.

#include "optim/optimizer.h"

namespace ring {

OptimizerKind adamw();

}  // namespace ring
