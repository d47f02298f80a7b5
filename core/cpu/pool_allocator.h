#pragma once
// The caching allocator of a CPU stream, for tensors whose sizes repeat in every step.

#include "core/caching_allocator.h"

namespace ring {

class PoolAllocator final : public CachingAllocator {
 public:
  explicit PoolAllocator(std::size_t max_cached = std::size_t{4} << 30) : CachingAllocator(max_cached) {}
  ~PoolAllocator() override;

 private:
  void* take(std::size_t bytes) override;
  void give_back(void* p, std::size_t bytes) override;
  [[noreturn]] void fail_out_of_memory(std::size_t bytes, const MemoryStats&) const override;
};

}  // namespace ring
