#pragma once
// A process says what it is doing to those that watch it: its agent reads it from the page that they share
// (job/worker_page.h), also after the process has died.

#include <cstdint>

#include "job/phases.h"

namespace ring {

// Called by the thread that takes steps, or by the one that writes; again and again within a phase that takes long,
// since each call is a sign of progress. `step`: that is being taken from now on.
void enter(RunPhase);
void enter(RunPhase, std::int64_t step);

}  // namespace ring
