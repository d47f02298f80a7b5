#pragma once
// Memory ordered on a stream: taken from the device's default pool, which keeps what is freed for the next step.
//
// A block may be handed out again as soon as the work queued on its own stream before the free is done. Work of another
// stream on it must be ordered before the free by an event.

#include <memory>
#include <mutex>

#include "core/cuda/handles.h"
#include "core/storage.h"

namespace ring::cuda {

class AsyncAllocator final : public Allocator {
 public:
  explicit AsyncAllocator(std::shared_ptr<StreamHandle> stream);
  void* allocate(std::size_t bytes) override;  // 256-byte aligned
  void free(void* p, std::size_t bytes) override;
  MemoryStats stats() const override;  // reserved: of the device's pool, shared by all streams of this process
  void reset_peak() override;

 private:
  void* try_allocate(std::size_t bytes) const;  // null: out of memory
  [[noreturn]] void fail_out_of_memory(std::size_t bytes) const;

  std::shared_ptr<StreamHandle> stream_;
  cudaMemPool_t pool_ = nullptr;
  mutable std::mutex mutex_;
  MemoryStats stats_;
};

}  // namespace ring::cuda
