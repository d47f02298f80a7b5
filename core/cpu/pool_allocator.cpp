#include "core/cpu/pool_allocator.h"

#include <cstdlib>

namespace ring {

PoolAllocator::~PoolAllocator() { release_cached(); }

void* PoolAllocator::take(std::size_t bytes) { return std::aligned_alloc(64, bytes); }

void PoolAllocator::give_back(void* p, std::size_t) { std::free(p); }

void PoolAllocator::fail_out_of_memory(std::size_t bytes, const MemoryStats& stats) const {
  throw OutOfMemory(str("out of memory: ", bytes, " bytes asked for, ", stats.in_use, " in use"));
}

}  // namespace ring
