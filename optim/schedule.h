#pragma once
// Learning rate and weight decay as pure functions of the step.

#include "optim/config.h"

namespace ring {

// Returns the factor on the peak learning rate for step 0 .. total - 1. The warm-up rises linearly to 1 at step
// warmup_steps - 1; cosine: Loshchilov and Hutter 2017, eq. 5; wsd (warm-up, stable, decay): Hu et al. 2024 (MiniCPM),
// section 4.
double schedule_factor(const ScheduleConfig&, std::int64_t step, std::int64_t total);

// Returns the factor on every weight decay: 1 during the warm-up, then changing to final_weight_decay along the
// learning rate's curve, as in DINO along a cosine (Caron et al. 2021, section 3.2).
double weight_decay_factor(const ScheduleConfig&, std::int64_t step, std::int64_t total);

}  // namespace ring
