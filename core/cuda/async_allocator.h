#pragma once
// The caching allocator of a CUDA stream, in front of the device's default memory pool. The pool serves all streams of
// this process. It keeps freed blocks that do not fit into the cache, and splits and merges them.
//
// A freed block may be reused by later work on the same stream. Work on other streams that uses the block must be
// ordered before the free by an event.

#include <memory>

#include "core/caching_allocator.h"
#include "core/cuda/handles.h"

namespace ring::cuda {

class AsyncAllocator final : public CachingAllocator {
 public:
  // Memory is 256-byte aligned. max_cached is small, because large blocks are better kept in the pool, which can split
  // them.
  explicit AsyncAllocator(std::shared_ptr<StreamHandle> stream, std::size_t max_cached = std::size_t{256} << 20);
  ~AsyncAllocator() override;
  MemoryStats stats() const override;  // `reserved` counts the device's pool, shared by all streams

 private:
  void* take(std::size_t bytes) override;
  void give_back(void* p, std::size_t bytes) override;
  void wait_until_freed() override;
  [[noreturn]] void fail_out_of_memory(std::size_t bytes, const MemoryStats&) const override;
  std::size_t reserved() const;

  std::shared_ptr<StreamHandle> stream_;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace ring::cuda
