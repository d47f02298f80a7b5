#pragma once
// Moves bytes between the ranks of a group: what a host transport has to provide. Used by one thread, except abort().

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/awake_clock.h"

namespace ring {

class HostLink {
 public:
  using Deadline = AwakeClock::time_point;
  virtual ~HostLink() = default;

  // Both sides name the same tag and size; a tag is used once. The bytes stay valid until wait_all() has returned.
  virtual void post_send(int to, std::uint64_t tag, const void* data, std::size_t bytes) = 0;
  virtual void post_recv(int from, std::uint64_t tag, void* data, std::size_t bytes) = 0;

  // Everything posted has arrived and left. Error names the peer and why; afterwards the link is unusable, and no byte
  // that was posted is touched any more.
  virtual void wait_all(Deadline deadline) = 0;

  // From any thread, at any time: the running and every later call fails with `reason`; the peers are disconnected.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ring
