#pragma once
// Records the operations of one group (comm/flight.h).

#include <string_view>

#include "comm/flight.h"
#include "comm/operation.h"

namespace ring {

// Where one group's operations are written; without a ring nowhere. Used by one thread at a time.
class FlightLog {
 public:
  FlightLog() = default;
  FlightLog(FlightRing&, std::string_view name, int first_rank, int size);
  Flight queued(const Operation&);
  void rename(std::string_view name);

 private:
  FlightRing* ring_ = nullptr;
  FlightGroup* group_ = nullptr;
};

}  // namespace ring
