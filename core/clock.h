#pragma once
// One clock for all that is timed: it never goes back, and only differences mean something.

#include <chrono>
#include <cstdint>

#include "core/awake_clock.h"

namespace ring {

// Seconds for which this process ran: while it is suspended, no step takes longer and no minutes are used up.
inline double seconds_now() { return std::chrono::duration<double>(AwakeClock::now().time_since_epoch()).count(); }

// CLOCK_MONOTONIC, which other processes of this host read, too.
inline std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace ring
