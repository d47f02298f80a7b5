#include "core/cpu/pool_allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

namespace ring {
namespace {
constexpr std::size_t kAlign = 64;
}

PoolAllocator::~PoolAllocator() { release_cached(); }

std::size_t PoolAllocator::size_class(std::size_t bytes) {
  const std::size_t n = std::max(bytes, kAlign * 4);
  const std::size_t step = std::bit_floor(n) / 4;
  return (n + step - 1) / step * step;  // NOLINT(clang-analyzer-core.DivideZero): step >= 64
}

void* PoolAllocator::allocate(std::size_t bytes) {
  // Beyond half of the address space the class itself would overflow; let the system refuse that amount.
  const std::size_t size = size_class(std::min(bytes, std::numeric_limits<std::size_t>::max() / 2));
  std::lock_guard lock(mutex_);
  void* p = nullptr;
  if (auto& list = cached_[size]; !list.empty()) {
    p = list.back();
    list.pop_back();
    cached_bytes_ -= size;
  } else {
    p = std::aligned_alloc(kAlign, size);
    if (!p) {
      release_cached();
      p = std::aligned_alloc(kAlign, size);
    }
    if (!p)
      fail("out of memory: ", bytes, " bytes asked for, ", stats_.in_use,
           " in use. Lower train.micro_batch or model.context");
    stats_.reserved += size;
  }
  stats_.in_use += bytes;
  stats_.peak = std::max(stats_.peak, stats_.in_use);
  return p;
}

void PoolAllocator::free(void* p, std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  std::lock_guard lock(mutex_);
  stats_.in_use -= bytes;
  if (cached_bytes_ + size > max_cached_) {
    std::free(p);
    stats_.reserved -= size;
    return;
  }
  cached_[size].push_back(p);
  cached_bytes_ += size;
}

void PoolAllocator::release_cached() {
  for (auto& [size, list] : cached_) {
    for (void* p : list) std::free(p);
    stats_.reserved -= size * list.size();
    list.clear();
  }
  cached_bytes_ = 0;
}

MemoryStats PoolAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void PoolAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak = stats_.in_use;
}

}  // namespace ring
