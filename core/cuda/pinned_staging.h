#pragma once
// A ring buffer of page-locked host memory, from which copies to a device do not block the host.

#include <cstddef>
#include <deque>
#include <memory>

#include "core/stream.h"

namespace ring::cuda {

std::shared_ptr<void> allocate_pinned(std::size_t bytes);  // throws Error if no more memory can be locked

class PinnedStaging {
 public:
  PinnedStaging() = default;
  ~PinnedStaging();  // waits for the copies; the memory is passed on to the next PinnedStaging
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  void* take(std::size_t bytes);  // requires at most kStagingBytes / 2; waits while a copy still reads this part
  void release_after(const Event& done);  // after this event, the memory of the last take() may be reused

 private:
  struct Piece {
    std::size_t begin, end;
    Event done;
  };
  std::shared_ptr<void> memory_;  // kStagingBytes, allocated at first use
  std::deque<Piece> in_flight_;   // oldest first
  std::size_t next_ = 0;
};

}  // namespace ring::cuda
