#pragma once
// Host memory that a device copies to and from, page-locked in the background. Locking takes half a second per GiB in
// one thread, most of it for pages that were never touched. Threads touch and lock the memory slab by slab, in the
// order of allocation, with large pages if the kernel has them. A copy waits only for the slab that it needs.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/storage.h"

namespace ring {

inline constexpr std::size_t kLargePage = std::size_t{2} << 20;  // bytes

// Host memory ran out, not device memory: a step that uses less device memory does not help.
struct OutOfHostMemory : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};

// Device calls that lock and unlock pages for copies. Called by several threads at once.
struct PageLockCalls {
  std::function<void(std::byte* begin, std::size_t bytes)> lock;  // throws Error if the device refuses
  std::function<void(std::byte* begin)> unlock;  // called only for locked memory, after all copies have ended
};

struct PageLockFacts {
  std::size_t taken = 0, locked = 0;  // bytes of memory that is not yet freed
  std::optional<int> node{};          // preferred NUMA node
  double waited = 0;                  // seconds that copies have waited for locking so far
};

class PageLocker {
 public:
  static constexpr std::size_t kSlab = std::size_t{256} << 20;

  // node: preferred NUMA node of the pages (core/numa.h). slab: slab size in bytes, a multiple of 2 MiB.
  PageLocker(PageLockCalls calls, int threads, std::optional<int> node, std::size_t slab = kSlab);
  ~PageLocker();  // stops locking; memory from allocate() may outlive it
  PageLocker(const PageLocker&) = delete;
  PageLocker& operator=(const PageLocker&) = delete;

  // Allocates zeroed memory, which the host may use at once. Throws Error if there is no address space.
  std::shared_ptr<void> allocate(std::size_t bytes);

  // Waits until the slab at p is locked. Returns how many of `bytes` from p on are in this slab: a copy must not go
  // beyond it. Returns `bytes` if p was not allocated here. Throws OutOfHostMemory if locking failed.
  std::size_t wait_until_locked(const void* p, std::size_t bytes);

  PageLockFacts facts() const;

 private:
  struct Slab;
  struct Region;
  struct Shared;

  const std::shared_ptr<Shared> shared_;  // kept alive by allocated memory
  std::vector<std::jthread> threads_;     // started by the first allocate()
  const int max_threads_;
  const std::optional<int> node_;
};

}  // namespace ring
