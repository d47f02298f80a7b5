#pragma once
// The clocks for all time measurements: monotonic, so only differences are meaningful.

#include <chrono>
#include <cstdint>

#include "core/awake_clock.h"

namespace ring {

// Returns the seconds for which this process ran. Time while the process is stopped or suspended counts neither as step
// time nor towards limits such as train.minutes.
inline double seconds_now() { return std::chrono::duration<double>(AwakeClock::now().time_since_epoch()).count(); }

// Returns CLOCK_MONOTONIC, which all processes of this host share.
inline std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace ring
