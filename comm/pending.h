#pragma once
// Finds device operations that are stuck, such as a collective whose peer is lost. The time of an operation starts only
// when nothing on this rank delays it any more: its event `after` is done, and the previous operation has ended. A rank
// that computes for long thus does not look like a rank with lost peers.

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

  // Adds an operation behind those of earlier calls. It waits for the event `after`, and the event `done` marks its
  // end. When find_timed_out() notices that it has started or ended, it notes that in `record`.
  void add(std::string text, Event after, Event done, RecordedOperation record = {});
  // Returns the text of the oldest operation if it has been running for longer than `limit`. Call it often, because it
  // also notices starts and ends. Throws Error with the operation's text if the device failed.
  std::optional<std::string> find_timed_out(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Pending {
    std::string text;
    Event after, done;
    RecordedOperation record;
    std::optional<Clock::time_point> since;  // first time at which find_timed_out() saw it running
  };
  std::deque<Pending> pending_;
};

}  // namespace ring
