#pragma once
// System calls that a signal may interrupt.

#include <cerrno>

namespace ring {

// Returns what call() returns, and repeats the call while it fails with EINTR: a signal is no error of the call.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ring
