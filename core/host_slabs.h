#pragma once
// Host memory that a device copies to and from. It is allocated ahead or on first use and then kept, because locking
// pages takes half a second per GiB. Pieces are handed out in order and freed all at once.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/stream.h"

namespace ring {

class HostSlabs {
 public:
  HostSlabs(const Stream& device, std::size_t limit) : device_(device), limit_(limit) {}

  // Allocates `bytes`, as far as the limit allows. The pages are locked in the background. Throws OutOfHostMemory.
  void reserve(std::size_t bytes);
  // Returns a piece; null if it would exceed the limit. After reset(), the same sizes in the same order get the same
  // addresses. Throws OutOfHostMemory.
  std::byte* allocate(std::size_t bytes);
  void reset();  // frees all pieces, but keeps the memory
  // Changes the limit, but never to less than held().
  void set_limit(std::size_t limit) { limit_ = std::max(limit, held_); }

  std::size_t held() const { return held_; }        // bytes held, in use or not
  std::size_t held_after(std::size_t bytes) const;  // upper bound on held() after allocating `bytes` more in total

 private:
  struct Slab {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0, used = 0;
    std::byte* allocate(std::size_t piece);
  };
  void add_slab(std::size_t bytes);

  Stream device_;
  std::size_t limit_, held_ = 0;
  std::vector<Slab> slabs_;
};

}  // namespace ring
