#pragma once
// Host memory that a device copies to and from, whose pages are locked while the program goes on. Locking takes half a
// second per GiB in one thread, most of it for pages that nobody has touched yet; threads touch and lock it slab by
// slab, in the order in which it was taken, with large pages where the kernel has them. Whoever copies waits for the
// slab in question only.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/storage.h"

namespace ring {

// The host's memory is short, not the device's: a step that takes less of the device does not help.
struct OutOfHostMemory : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};

// What a device does with pages that it will copy to and from. Called by several threads at once.
struct PageLockCalls {
  std::function<void(std::byte* begin, std::size_t bytes)> lock;  // Error: refused
  std::function<void(std::byte* begin)> unlock;                   // of what was locked; copies there are done then
};

struct PageLockFacts {
  std::size_t taken = 0, locked = 0;  // bytes, of the memory that exists
  std::optional<int> node{};          // that is preferred
  double waited = 0;                  // seconds that copies have waited for it so far
};

class PageLocker {
 public:
  static constexpr std::size_t kSlab = std::size_t{256} << 20;

  // node: preferred for the pages (core/numa.h). slab: bytes, whole pages of 2 MiB.
  PageLocker(PageLockCalls calls, int threads, std::optional<int> node, std::size_t slab = kSlab);
  ~PageLocker();  // memory that was taken may outlive it, but is not locked any more
  PageLocker(const PageLocker&) = delete;
  PageLocker& operator=(const PageLocker&) = delete;

  // Memory of zeros, which the host may use at once. Error: no address space.
  std::shared_ptr<void> take(std::size_t bytes);

  // How many of `bytes` from p on lie in one slab, once that is locked: a copy must not go beyond it. All of them where
  // p was not taken here. Error: OutOfHostMemory.
  std::size_t wait(const void* p, std::size_t bytes);

  PageLockFacts facts() const;

 private:
  struct Slab;
  struct Region;
  struct Shared;

  const std::shared_ptr<Shared> shared_;  // with what was taken
  std::vector<std::jthread> threads_;     // started with the first region
  const int most_threads_;
  const std::optional<int> node_;
};

}  // namespace ring
