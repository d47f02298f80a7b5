#pragma once
// Measures how long this process waits for other ranks of its groups, to find slow ranks.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/awake_clock.h"

namespace ring {

using WaitClock = AwakeClock;

// Time for which this thread has waited in group operations since it started.
inline thread_local WaitClock::duration waited_for_groups{};

// Adds the duration of its lifetime to waited_for_groups.
class GroupWaitTimer {
 public:
  GroupWaitTimer() = default;
  ~GroupWaitTimer() { waited_for_groups += WaitClock::now() - since_; }
  GroupWaitTimer(const GroupWaitTimer&) = delete;
  GroupWaitTimer& operator=(const GroupWaitTimer&) = delete;

 private:
  WaitClock::time_point since_ = WaitClock::now();
};

// Nanoseconds for which this process was still sending after it had received everything in the same operation, because
// its own link was the slower one.
inline std::atomic<std::int64_t> sending_ns{0};

}  // namespace ring
