#pragma once
// Records the operations of one group (job/flight.h).

#include <string_view>

#include "comm/operation.h"
#include "job/flight.h"

namespace ring {

// Writes one group's operations to a FlightRing. Does nothing without a ring. Used by one thread at a time.
class FlightLog {
 public:
  FlightLog() = default;
  FlightLog(FlightRing&, std::string_view name, int first_rank, int size);
  RecordedOperation record_queued(const Operation&);  // the result marks its start and end
  void rename(std::string_view name);

 private:
  FlightRing* ring_ = nullptr;
  FlightGroup* group_ = nullptr;
};

}  // namespace ring
