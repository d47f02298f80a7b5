#pragma once
// What this machine sustains in a training step, for `ringmaster plan --rates`.

#include "bench/step.h"
#include "engine/memory/cost_model.h"

namespace ring {

// From some steps of the benchmark, kernel by kernel, and copies and messages of its own: what its precision computes,
// and, with several processes, the link between them (bench/message_rates.h). What is not measured stays as `before`
// has it. Collective.
DeviceRates calibrate(StepBenchmark&, const DeviceRates& before);

std::string calibrated_device(const ExecContext&);  // as DeviceRates::device

}  // namespace ring
