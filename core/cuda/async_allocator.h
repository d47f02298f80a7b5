#pragma once
// The pool of a CUDA stream. Behind it is the device's default pool, which serves all streams of this process and also
// keeps what is freed: what does not fit into the cache here is cut and joined there.
//
// A block may be handed out again as soon as the work queued on its own stream before the free is done. Work of another
// stream on it must be ordered before the free by an event.

#include <memory>

#include "core/caching_allocator.h"
#include "core/cuda/handles.h"

namespace ring::cuda {

class AsyncAllocator final : public CachingAllocator {
 public:
  // 256-byte aligned memory. max_cached is small: large blocks are better kept where they can be cut.
  explicit AsyncAllocator(std::shared_ptr<StreamHandle> stream, std::size_t max_cached = std::size_t{256} << 20);
  ~AsyncAllocator() override;
  MemoryStats stats() const override;  // reserved: of the device's pool, shared by all streams of this process

 private:
  void* take(std::size_t bytes) override;
  void give_back(void* p, std::size_t bytes) override;
  void settle() override;
  [[noreturn]] void fail_out_of_memory(std::size_t bytes, const MemoryStats&) const override;
  std::size_t reserved() const;

  std::shared_ptr<StreamHandle> stream_;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace ring::cuda
