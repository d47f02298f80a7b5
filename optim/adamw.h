#pragma once
// AdamW (Loshchilov and Hutter 2019): one kernel call for each update.

#include "optim/update_rule.h"

namespace ring {

OptimizerKind adamw();

}  // namespace ring
