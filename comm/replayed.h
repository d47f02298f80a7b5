#pragma once
// Operations that are recorded once and replayed many times (CUDA graphs), with detection of stuck ones. The host does
// not see them start: the device increments a counter before and after each.

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
  static constexpr std::size_t kMost = 4096;  // newer operations replace the oldest, whose recordings are gone
  static constexpr std::size_t kBytes = kMost * sizeof(ReplayCounts);

  // counts: kBytes of memory that the device can write.
  explicit ReplayedOperations(std::shared_ptr<void> counts);

  // Adds a recorded operation and returns its counters. Each replay must increment `started` when nothing on this rank
  // delays the operation any more, and `done` at its end.
  ReplayCounts& add(std::string text);
  // Returns the text of the first operation whose current replay has been running for longer than `limit`. Call it
  // often.
  std::optional<std::string> find_stuck(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Watched {
    std::string text;
    std::uint32_t started = 0;               // number of the replay that was last seen running
    std::optional<Clock::time_point> since;  // when this replay was first seen
  };
  ReplayCounts& counts(std::size_t i) const { return static_cast<ReplayCounts*>(memory_.get())[i]; }

  std::shared_ptr<void> memory_;
  std::vector<Watched> watched_;
  std::size_t next_ = 0;
};

}  // namespace ring
