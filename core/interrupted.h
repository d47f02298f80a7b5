#pragma once
// System calls that a signal may interrupt.

#include <cerrno>

namespace ring {

// Repeats call() while a signal interrupts it (EINTR), and returns its result.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ring
