#pragma once
// Streams of CUDA devices that Stream::create() does not make.

#include "core/stream.h"

namespace ring::cuda {

// Returns a stream whose work runs before ready work of other streams: for transfers that overlap with computation.
Stream high_priority_stream(int device);

}  // namespace ring::cuda
