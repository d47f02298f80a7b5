#pragma once
// A caching allocator with size classes, for tensors whose sizes repeat every step.

#include <map>
#include <mutex>
#include <vector>

#include "core/storage.h"

namespace ring {

class PoolAllocator final : public Allocator {
 public:
  explicit PoolAllocator(std::size_t max_cached = std::size_t{4} << 30) : max_cached_(max_cached) {}
  ~PoolAllocator() override;
  void* allocate(std::size_t bytes) override;
  void free(void* p, std::size_t bytes) override;
  MemoryStats stats() const override;
  void reset_peak() override;

  // Four classes per power of two: at most 1/4 of a block is unused.
  static std::size_t size_class(std::size_t bytes);

 private:
  void release_cached();

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> cached_;  // by size class
  std::size_t cached_bytes_ = 0, max_cached_;
  MemoryStats stats_;
};

}  // namespace ring
