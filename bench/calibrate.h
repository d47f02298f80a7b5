#pragma once
// Measures the rates that this machine sustains in training steps, for `ringmaster plan --rates`.

#include "bench/step.h"
#include "engine/memory/cost_model.h"

namespace ring {

// Measures the compute rates for the benchmark's precision in a few profiled steps, copies to the host, and, with
// several processes, the link between them (bench/message_rates.h). Rates that are not measured are taken from
// `before`. Collective.
DeviceRates calibrate(StepBenchmark&, const DeviceRates& before);

std::string calibrated_device(const ExecContext&);  // returns the value for DeviceRates::device

}  // namespace ring
