#pragma once
// Work that a recorded step cannot hold, since the host knows only in each step which kernels to queue, and of what
// size: a recording then has a place at which the host queues it anew in each launch.

#include <functional>

#include "core/stream.h"

namespace ring {

// Calls `work`, unless the stream is recorded: then each launch of the recording does, at this place, for which other
// streams that the recorded work has started must have joined. It must hold none of the step's memory and refers to
// what lives as long as the recording. Where an arena says so (StepArena::set_apart), what it allocates is none of the
// step's memory, as it is none of a recording's. Error: the stream is recorded and has no such places.
void queue_anew(const Stream& stream, std::function<void()> work);

}  // namespace ring
