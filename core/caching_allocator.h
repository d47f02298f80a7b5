#pragma once
// A pool in front of a system's memory: what is freed is kept by size class and handed out again at once.
//
// It grows as it is asked, keeps at most `max_cached` unused bytes, and gives all of them back before it fails. For a
// device, blocks are reused in the order of its stream: the work that was queued before the free is done before the
// work that the next owner queues.

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

  // Eight classes per power of two, from 16 MiB on multiples of 2 MiB: at most 1/8 of a block is unused, or 63 bytes.
  static std::size_t size_class(std::size_t bytes);

 protected:
  explicit CachingAllocator(std::size_t max_cached) : max_cached_(max_cached) {}
  void release_cached();  // to be called by destructors

  virtual void* take(std::size_t bytes) = 0;  // null: there is no more
  virtual void give_back(void* p, std::size_t bytes) = 0;
  virtual void settle() {}  // after unused blocks were given back: waits until others can have them
  [[noreturn]] virtual void fail_out_of_memory(std::size_t bytes, const MemoryStats&) const = 0;

 private:
  void* take_cached(std::size_t size);

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> cached_;  // by size class
  std::size_t cached_bytes_ = 0, max_cached_;
  MemoryStats stats_;
};

}  // namespace ring
