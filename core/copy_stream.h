#pragma once

#include <atomic>

#include "core/stream.h"

namespace ring {

// For tests: creates the stream that copy_stream() returns for a CPU compute stream. If null, copy_stream() returns the
// compute stream itself. The streams of tests delay each copy for as long as the events allow.
inline std::atomic<Stream (*)()> make_cpu_copy_stream{nullptr};

// Returns a stream for copies that overlap with the work of `compute`. On a CPU, copies block the caller on any stream,
// so `compute` itself is returned.
inline Stream copy_stream(const Stream& compute) {
  if (compute.device().backend != Backend::cpu) return Stream::create(compute.device());
  const auto make = make_cpu_copy_stream.load();
  return make && compute.impl().computes() ? make() : compute;
}

}  // namespace ring
