#pragma once
// The clock for every time-out about somebody else: a peer, a server, a disk. It stands still while this process does
// not run, so that a process that was stopped (SIGSTOP, a frozen container, a paused virtual machine) does not take its
// own absence for the silence of others. A peer that is stopped while this process runs is still silent.
//
// The time is CLOCK_MONOTONIC without the gaps. CLOCK_MONOTONIC does not follow the system clock when that is set, and
// does not count the time for which the machine is suspended. A gap is a time in which nobody looked at the clock for
// longer than kGap although a thread of this process looks every kTick.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace ring {

// Takes the gaps out of a monotonic clock that it is told. Any thread may call it.
class GapFilter {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr std::chrono::milliseconds kTick{100}, kGap{500};

  // Counts from `now` on: time before it is no gap.
  void begin(Time now) noexcept { last_ = now.count(); }
  // Returns `now` without all gaps so far. Requires calls at least every kTick while the process runs.
  Time without_gaps(Time now) noexcept;
  // Returns the end of the newest gap, as without_gaps() counts. 0: there was none.
  Time last_gap() const noexcept { return Time(gap_end_.load()); }

 private:
  std::mutex mutex_;  // of a gap's end
  std::atomic<std::int64_t> last_{0}, lost_{0}, gap_end_{0};
};

struct AwakeClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<AwakeClock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
  // Returns how long ago this process went on after it had not run. Peers may have been stopped with it and go on
  // later, so whoever judges their silence gives them a whole time-out from then on.
  static duration since_gap() noexcept;
};

}  // namespace ring
