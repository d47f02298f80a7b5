#pragma once
// Publishes what a process is doing: the process's agent reads it from the shared page (job/worker_status.h), even
// after the process has died.

#include <cstdint>

#include "job/phases.h"

namespace ring {

// Called by the thread that runs steps or by the thread that writes checkpoints. Call it repeatedly within a long
// phase: each call is a sign of progress. `step`: the step that starts now.
void enter(RunPhase);
void enter(RunPhase, std::int64_t step);

}  // namespace ring
