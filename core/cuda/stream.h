#pragma once
// Streams of CUDA devices that Stream::create() does not make.

#include "core/stream.h"

namespace ring::cuda {

// Its work goes first where that of other streams is ready too: for transfers beside computation.
Stream high_priority_stream(int device);

}  // namespace ring::cuda
