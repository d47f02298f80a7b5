#pragma once

#include <atomic>

#include "core/stream.h"

namespace ring {

// For tests: makes the copy streams of CPU compute streams. Null makes copy_stream() return the compute stream itself.
// Test streams copy as late as events allow.
inline std::atomic<Stream (*)()> make_cpu_copy_stream{nullptr};

// Returns a stream for copies that overlap with the work of `compute`. On a CPU, copies block the caller on any stream,
// so `compute` itself is returned.
inline Stream copy_stream(const Stream& compute) {
  if (compute.device().backend != Backend::cpu) return Stream::create(compute.device());
  const auto make = make_cpu_copy_stream.load();
  return make && compute.impl().computes() ? make() : compute;
}

}  // namespace ring
