#pragma once
// A cache in front of system or device memory: freed blocks are kept by size class and reused.
//
// The cache grows on demand, keeps at most `max_cached` unused bytes, and releases all of them before an allocation
// fails. On a device, blocks are reused in stream order: work that was queued before the free ends before work that the
// next owner queues.

#include <map>
#include <mutex>
#include <vector>

#include "core/storage.h"

namespace ring {

class CachingAllocator : public Allocator {
 public:
  void* allocate(std::size_t bytes) final;
  void free(void* p, std::size_t bytes) final;
  MemoryStats stats() const override;
  void reset_peak() final;
  void trim() final;

  // Returns the size that is allocated for `bytes`. Below 16 MiB there are eight sizes per power of two; from 16 MiB
  // on, sizes are multiples of 2 MiB. A block wastes at most 1/8 of its size, or 63 bytes.
  static std::size_t size_class(std::size_t bytes);

 protected:
  explicit CachingAllocator(std::size_t max_cached) : max_cached_(max_cached) {}
  void release_cached();  // called by the destructors of derived classes

  virtual void* take(std::size_t bytes) = 0;  // returns null if there is no more memory
  virtual void give_back(void* p, std::size_t bytes) = 0;
  // Called after unused blocks were given back. Waits until their memory can be allocated again.
  virtual void wait_until_freed() {}
  [[noreturn]] virtual void fail_out_of_memory(std::size_t bytes, const MemoryStats&) const = 0;

 private:
  void* take_cached(std::size_t size);  // returns null if no block of this size class is cached

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> cached_;  // unused blocks by size class
  std::size_t cached_bytes_ = 0, max_cached_;
  MemoryStats stats_;
};

}  // namespace ring
