#pragma once
// AdamW (Loshchilov and Hutter 2019): one kernel call per update.

#include "optim/update_rule.h"

namespace ring {

OptimizerKind adamw();

}  // namespace ring
