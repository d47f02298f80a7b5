#pragma once
// CUDA streams with a priority, which Stream::create() cannot set.

#include "core/stream.h"

namespace ring::cuda {

// Returns a stream whose work runs before ready work of other streams: for transfers that overlap with computation.
Stream high_priority_stream(int device);

}  // namespace ring::cuda
