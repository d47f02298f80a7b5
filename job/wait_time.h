#pragma once
// How long this process was held up by its groups, for finding slow ranks.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/awake_clock.h"

namespace ring {

using WaitClock = AwakeClock;

// What this thread waited in operations of groups since it was started.
inline thread_local WaitClock::duration waited_for_groups{};

// Adds the time for which it lives.
class WaitForGroups {
 public:
  WaitForGroups() = default;
  ~WaitForGroups() { waited_for_groups += WaitClock::now() - since_; }
  WaitForGroups(const WaitForGroups&) = delete;
  WaitForGroups& operator=(const WaitForGroups&) = delete;

 private:
  WaitClock::time_point since_ = WaitClock::now();
};

// For so long what this process had to send went on after all that it receives in the same operation had arrived: its
// own line is the slower one.
inline std::atomic<std::int64_t> sending_ns{0};

}  // namespace ring
