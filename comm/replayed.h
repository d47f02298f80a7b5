#pragma once
// Operations that were recorded once and are replayed many times, and whether one is stuck. The host does not see them
// start: the device counts on its way into and out of each.

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
  static constexpr std::size_t kMost = 4096;  // newer ones replace the oldest, of recordings that are gone
  static constexpr std::size_t kBytes = kMost * sizeof(ReplayCounts);

  // counts: kBytes that the device can write.
  explicit ReplayedOperations(std::shared_ptr<void> counts);

  // One more was recorded. Whoever replays it raises `started` when nothing of this rank holds it up any more, and
  // `done` at its end.
  ReplayCounts& add(std::string text);
  // What the first is that has been at work in one replay for longer than `limit`; to be asked often.
  std::optional<std::string> stuck(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Watched {
    std::string text;
    std::uint32_t started = 0;               // the replay that was seen to be at work
    std::optional<Clock::time_point> since;  // then
  };
  ReplayCounts& counts(std::size_t i) const { return static_cast<ReplayCounts*>(memory_.get())[i]; }

  std::shared_ptr<void> memory_;
  std::vector<Watched> watched_;
  std::size_t next_ = 0;
};

}  // namespace ring
