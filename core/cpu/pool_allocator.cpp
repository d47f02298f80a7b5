#include "core/cpu/pool_allocator.h"

#include <sys/mman.h>

#include <cstdlib>

#include "core/page_locker.h"

namespace ring {

PoolAllocator::~PoolAllocator() { release_cached(); }

// Uses large pages, because a step touches more memory than a core's TLB covers with small pages (12 MB on Zen 4, 8 MB
// on Sapphire Rapids).
void* PoolAllocator::take(std::size_t bytes) {
  const bool large = bytes >= kLargePage;
  void* p = nullptr;
  if (posix_memalign(&p, large ? kLargePage : 64, bytes) != 0) return nullptr;
  if (large) madvise(p, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);  // best effort
  return p;
}

void PoolAllocator::give_back(void* p, std::size_t) { std::free(p); }

void PoolAllocator::fail_out_of_memory(std::size_t bytes, const MemoryStats& stats) const {
  throw OutOfMemory(str("out of memory: ", bytes, " bytes requested, ", stats.in_use, " in use"));
}

}  // namespace ring
