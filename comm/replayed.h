#pragma once
// Finds operations that are stuck in a replay of a CUDA graph, which is recorded once and replayed many times. The host
// does not see a replayed operation start, so the device increments one counter before the operation and one after it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/awake_clock.h"

namespace ring {

struct ReplayCounts {
  std::uint32_t started = 0, done = 0;
};

class ReplayedOperations {
 public:
  using Clock = AwakeClock;
  // Maximum number of operations. Each further one replaces the oldest, whose recording is then already deleted.
  static constexpr std::size_t kMost = 4096;
  static constexpr std::size_t kBytes = kMost * sizeof(ReplayCounts);

  // memory: kBytes of host memory that the device can write.
  explicit ReplayedOperations(std::shared_ptr<void> memory);

  // Adds a recorded operation and returns its counters. Each replay must increment `started` when the operation no
  // longer waits for earlier work of this rank, and `done` when it has ended.
  ReplayCounts& add(std::string text);
  // Returns the text of the first operation whose current replay has been running for longer than `limit`. Call it
  // often.
  std::optional<std::string> find_timed_out(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Watched {
    std::string text;
    std::uint32_t started = 0;               // number of the replay that find_timed_out() last saw running
    std::optional<Clock::time_point> since;  // time at which it first saw this replay running
  };
  ReplayCounts& counts(std::size_t i) const { return static_cast<ReplayCounts*>(memory_.get())[i]; }

  std::shared_ptr<void> memory_;
  std::vector<Watched> watched_;
  std::size_t next_ = 0;
};

}  // namespace ring
