#include "core/awake_clock.h"

#include <pthread.h>

#include <system_error>
#include <thread>

#include "core/signals.h"

namespace ring {
namespace {

using Time = GapFilter::Time;

Time monotonic() { return std::chrono::steady_clock::now().time_since_epoch(); }

// Reads the clock every kTick, on a thread that lives as long as the process. A child of fork() starts its own thread.
class Ticker {
 public:
  Ticker() {
    pthread_atfork(nullptr, nullptr, [] { ticker().started_ = false; });
  }
  static Ticker& ticker() {
    static auto* const instance = new Ticker;  // never deleted: its thread uses it until the process ends
    return *instance;
  }

  Time now() noexcept {
    if (!started_.load(std::memory_order_acquire)) start();
    return ticks_ ? filter_.without_gaps(monotonic()) : monotonic();
  }
  Time last_gap() const noexcept { return filter_.last_gap(); }

 private:
  void start() noexcept {
    const std::lock_guard lock(starting_);
    if (started_) return;
    filter_.begin(monotonic());
    const BlockSignals block;
    try {
      std::thread([this] {  // runs until the process ends, and uses only this object, which is never deleted
        for (;; std::this_thread::sleep_for(GapFilter::kTick)) filter_.without_gaps(monotonic());
      }).detach();
      ticks_ = true;
    } catch (const std::system_error&) {
      ticks_ = false;  // without the thread, idle time would look like gaps, and no time-out would ever expire
    }
    started_.store(true, std::memory_order_release);
  }

  GapFilter filter_;
  std::mutex starting_;
  std::atomic<bool> started_{false}, ticks_{false};
};

}  // namespace

// Adds to lost_ before it stores last_: a thread that reads the new last_ also reads the new lost_.
Time GapFilter::without_gaps(Time now) noexcept {
  const std::int64_t t = now.count();
  std::int64_t last = last_.load(std::memory_order_acquire);
  if (t - last > Time(kGap).count()) {
    const std::lock_guard lock(mutex_);
    last = last_;
    if (t - last > Time(kGap).count()) {
      lost_ += t - last;
      gap_end_ = t - lost_;
      last_.store(t, std::memory_order_release);
    }
  }
  while (t > last && !last_.compare_exchange_weak(last, t, std::memory_order_acq_rel)) continue;
  return Time(t - lost_.load(std::memory_order_acquire));
}

AwakeClock::time_point AwakeClock::now() noexcept { return time_point(Ticker::ticker().now()); }

AwakeClock::duration AwakeClock::since_gap() noexcept {
  const Time now = Ticker::ticker().now();
  return now - Ticker::ticker().last_gap();
}

}  // namespace ring
