#pragma once
// Looks up the rates that devices sustain (engine/memory/cost_model.h), by the names that settings and options use.

#include <string>

#include "comm/communicator.h"
#include "engine/config.h"
#include "engine/memory/cost_model.h"

namespace ring {

// Returns the shipped table for a GPU model such as "NVIDIA H100 80GB HBM3": h100 if the name contains H100, else h200.
std::string shipped_table(const std::string& model);

// Returns the rates of a shipped table (h200, h100, cpu; case-insensitive) or of a file that `bench calibrate` wrote.
// If `name` is empty, run.rates is used; if that is empty too, the shipped table of the device that the settings use on
// this machine. Throws Error if there are no such rates, or none for the precision of the settings. The message names
// `named_by` (the option), the file, the key and the command that measures the rates.
DeviceRates rates_named(const std::string& name, const Config&, const std::string& named_by = "run.rates");

// Returns rank 0's rates, so that all ranks compute the same plan. Warns if run.rates were measured on a different
// device. Collective.
DeviceRates agreed_rates(const Config& resolved, Communicator& host);

}  // namespace ring
