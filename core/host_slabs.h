#pragma once
// Host memory that a device copies to and from, taken ahead or as it is first needed, and then kept: locking pages
// takes half a second per GiB. Pieces are given out in order and become free together.

#include <cstddef>
#include <memory>
#include <vector>

#include "core/stream.h"

namespace ring {

class HostSlabs {
 public:
  HostSlabs(const Stream& device, std::size_t limit) : device_(device), limit_(limit) {}

  // As much is taken now, as far as the limit allows, and locked in the background before it is needed. Error:
  // OutOfHostMemory.
  void reserve(std::size_t bytes);
  // null: it would be more than the limit. The same sizes in the same order get the same places. Error:
  // OutOfHostMemory.
  std::byte* take(std::size_t bytes);
  void reuse();  // all pieces are free again

  std::size_t held() const { return held_; }  // bytes, used or not

 private:
  struct Slab {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0, used = 0;
    std::byte* take(std::size_t piece);
  };
  void add_slab(std::size_t bytes);

  Stream device_;
  std::size_t limit_, held_ = 0;
  std::vector<Slab> slabs_;
};

}  // namespace ring
