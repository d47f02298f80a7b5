#pragma once

#include "core/stream.h"

namespace ring {

// A stream for copies beside what `compute` runs. A CPU copies while the caller waits, on any stream: the same one.
inline Stream copy_stream(const Stream& compute) {
  return compute.device().backend == Backend::cpu ? compute : Stream::create(compute.device());
}

}  // namespace ring
