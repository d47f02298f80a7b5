#pragma once
// Distinguishes peers that have exited from peers that merely do not respond.

#include "core/check.h"

namespace ring {

// Thrown by connect_to() (job/socket.h) if every address of the endpoint refuses connections: no process listens there.
struct ConnectionRefused : Error {
  using Error::Error;
};

inline constexpr const char* kNoAnswer = "no answer in time";  // in errors about peers that do not respond

}  // namespace ring
