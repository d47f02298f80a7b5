#pragma once
// Host work inside a recorded step. A CUDA graph cannot contain work whose kernels and sizes the host learns only in
// each step. The recording keeps a place for such work instead, where the host queues the work in each launch.

#include <functional>

#include "core/stream.h"

namespace ring {

// Calls `work` now. If the stream is being recorded, calls it instead at this place in each launch of the recording.
// - Other streams that the recorded work has started must have joined before this call.
// - `work` must not hold memory of the step, and may refer only to objects that live as long as the recording.
// - Memory that `work` allocates never belongs to the recording. It does not belong to the step either if
//   StepArena::exclude_host_nodes() was called.
// - Throws Error if the stream is being recorded and its recordings cannot keep places for host work.
void queue_host_node(const Stream& stream, std::function<void()> work);

}  // namespace ring
