#pragma once
// Operations queued on a device, in order, with detection of stuck ones. An operation's time runs only once nothing on
// this rank delays it: its `after` is done, and so is the operation before it. A rank that computes for long thus does
// not look like a rank with lost peers.

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "core/awake_clock.h"
#include "core/stream.h"
#include "job/flight.h"

namespace ring {

class PendingOperations {
 public:
  using Clock = AwakeClock;

  // `after`: the event that the operation waits for; `done`: its end. When find_stuck() notices them, it notes them in
  // `record`.
  void add(std::string text, Event after, Event done, RecordedOperation record = {});
  // Returns the text of the oldest operation if it has been running for longer than `limit`. Call it often, because it
  // also notices starts and ends. Throws Error with the operation's text if the device failed.
  std::optional<std::string> find_stuck(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Pending {
    std::string text;
    Event after, done;
    RecordedOperation record;
    std::optional<Clock::time_point> since;  // first time it was seen running
  };
  std::deque<Pending> pending_;
};

}  // namespace ring
