#pragma once
// Operations that were queued on a device, in their order, and whether one is stuck. Its time runs while nothing of
// this rank holds it up: what it waits for here is done, and so is the operation before it. A rank that computes for
// long does not look like one whose peers are lost.

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

  // after: what it starts behind on this rank; done: its end. Both are noted in `flight` when they are noticed here.
  void add(std::string text, Event after, Event done, Flight flight = {});
  // What the oldest one is, once it has been at work for longer than `limit`; to be asked often. Error, with the
  // operation's text: the device failed.
  std::optional<std::string> stuck(Clock::time_point now, std::chrono::milliseconds limit);

 private:
  struct Pending {
    std::string text;
    Event after, done;
    Flight flight;
    std::optional<Clock::time_point> since;  // seen to be at work
  };
  std::deque<Pending> pending_;
};

}  // namespace ring
