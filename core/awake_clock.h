#pragma once
// A clock for time-outs on peers, servers and disks. It stands still while this process does not run, so that a process
// that was stopped (SIGSTOP, a frozen container, a paused virtual machine) does not mistake its own pause for a silent
// peer. A peer that is stopped while this process runs still counts as silent.
//
// The time is CLOCK_MONOTONIC minus all gaps. CLOCK_MONOTONIC does not follow changes of the system clock, and does not
// count the time for which the machine is suspended. A gap is a period of more than kGap in which no thread read the
// clock, although a thread of this process reads it every kTick.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace ring {

// Removes gaps from a monotonic clock, whose readings callers pass. Thread-safe.
class GapFilter {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr std::chrono::milliseconds kTick{100}, kGap{500};

  // Starts with `now` as the first reading, so that the time before it is not a gap.
  void begin(Time now) noexcept { last_ = now.count(); }
  // Returns `now` minus all gaps so far. Requires a call at least every kTick while the process runs.
  Time without_gaps(Time now) noexcept;
  // Returns when the newest gap ended, on the scale of without_gaps(); 0 if there was none.
  Time last_gap() const noexcept { return Time(gap_end_.load()); }

 private:
  std::mutex mutex_;  // held while a thread adds a gap
  // All values are in nanoseconds.
  std::atomic<std::int64_t> last_{0};     // newest reading
  std::atomic<std::int64_t> lost_{0};     // sum of all gaps
  std::atomic<std::int64_t> gap_end_{0};  // end of the newest gap
};

struct AwakeClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
  // Returns the time since the newest gap ended. Peers may have been stopped together with this process and may resume
  // later, so callers should allow a silent peer a full time-out from the end of the gap.
  static duration since_gap() noexcept;
};

}  // namespace ring
