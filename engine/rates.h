#pragma once
// The rates that devices sustain (engine/memory/cost_model.h), by the names of settings and options.

#include <string>

#include "comm/communicator.h"
#include "engine/config.h"
#include "engine/memory/cost_model.h"

namespace ring {

// The table that is shipped for a model of GPU ("NVIDIA H100 80GB HBM3"), by its name: h100, and h200 for all others.
std::string shipped_table(const std::string& model);

// name: a shipped table (h200, h100, cpu; in letters of either case), or a file that `bench calibrate` wrote; empty:
// run.rates, or, where that is empty too, the shipped table of what the settings compute on here. named_by: the option,
// for messages. Error names it, the file, the key and the command that measures: no such rates, or none in the
// precision that the settings compute in there.
DeviceRates rates_named(const std::string& name, const Config&, const std::string& named_by = "run.rates");

// Those of rank 0, with a warning where run.rates were measured on another device. The ranks compute one plan, each for
// itself. Collective.
DeviceRates agreed_rates(const Config& resolved, Communicator& host);

}  // namespace ring
