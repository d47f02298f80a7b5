#pragma once
// Page-locked host memory, used in a circle: what is copied to a device from it does not make the host wait.

#include <cstddef>
#include <deque>
#include <memory>

#include "core/stream.h"

namespace ring::cuda {

std::shared_ptr<void> pinned_memory(std::size_t bytes);  // Error: the system has no more to lock

class PinnedStaging {
 public:
  PinnedStaging() = default;
  ~PinnedStaging();  // waits for the copies; the memory goes to the next one that needs it
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  void* take(std::size_t bytes);        // at most kStagingBytes / 2; waits where that part is still being copied
  void taken_until(const Event& done);  // what was taken last is free again after this event

 private:
  struct Piece {
    std::size_t begin, end;
    Event done;
  };
  std::shared_ptr<void> memory_;  // kStagingBytes, from the first use on
  std::deque<Piece> in_flight_;   // oldest first
  std::size_t next_ = 0;
};

}  // namespace ring::cuda
