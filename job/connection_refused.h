#pragma once
// Tells peers that have ended from peers that are silent.

#include "core/check.h"

namespace ring {

// Thrown by connect_to() (job/socket.h) if every address of the endpoint answers that no process listens there.
struct ConnectionRefused : Error {
  using Error::Error;
};

inline constexpr const char* kNoAnswer = "no answer in time";  // in errors about peers that are silent

}  // namespace ring
