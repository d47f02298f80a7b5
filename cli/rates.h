#pragma once
// What devices sustain, as the command line names it.

#include <string>

#include "engine/config.h"
#include "parallel/plan/cost_model.h"

namespace ring {

// Text of --rates.
inline constexpr const char* kRatesText =
    "What devices sustain: h200, h100, cpu, or a file that bench calibrate wrote; auto = what this build computes on";

// A shipped table, or a file. Error: it has none in the precision that the settings compute in there.
DeviceRates rates_named(const std::string& name, const Config&);

}  // namespace ring
