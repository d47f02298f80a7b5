#pragma once

#include <atomic>

#include "core/stream.h"

namespace ring {

// Makes the streams for copies beside a CPU's work, in place of that work's own; null: there are none. For tests, with
// streams that copy as late as events allow.
inline std::atomic<Stream (*)()> make_cpu_copy_stream{nullptr};

// A stream for copies beside what `compute` runs. A CPU copies while the caller waits, on any stream: the same one.
inline Stream copy_stream(const Stream& compute) {
  if (compute.device().backend != Backend::cpu) return Stream::create(compute.device());
  const auto make = make_cpu_copy_stream.load();
  return make && compute.impl().computes() ? make() : compute;
}

}  // namespace ring
