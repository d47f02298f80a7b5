#pragma once
// Moves bytes between the ranks of a group: the interface of a host transport. Used by one thread, except abort().

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

  // Both sides must pass the same tag and size. A tag is used once. The memory must stay valid until wait_all()
  // returns.
  virtual void post_send(int to, std::uint64_t tag, const void* data, std::size_t bytes) = 0;
  virtual void post_recv(int from, std::uint64_t tag, void* data, std::size_t bytes) = 0;

  // Waits until all posted messages have been sent and received. Throws Error with the peer and the reason. After an
  // error the link is unusable and no longer accesses posted memory.
  virtual void wait_all(Deadline deadline) = 0;

  // Makes the running call and every later one fail with `reason`, and disconnects the peers. Callable from any thread
  // at any time.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ring
