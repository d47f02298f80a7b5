#pragma once
// Work that a recorded step (CUDA graph) cannot contain, because the host knows only in each step which kernels to
// queue, and of what size. The recording then has a place at which the host queues this work in each launch.

#include <functional>

#include "core/stream.h"

namespace ring {

// Calls `work` at once, or, if the stream is being recorded, at this place of each launch of the recording. Other
// streams that the recorded work has started must have joined by then. `work` must not hold memory of the step, and may
// refer only to objects that live as long as the recording. Its own allocations never belong to a recording's memory,
// nor to the step's if the arena sets them apart (StepArena::exclude_host_nodes). Throws Error if the stream is being
// recorded without such places.
void queue_host_node(const Stream& stream, std::function<void()> work);

}  // namespace ring
