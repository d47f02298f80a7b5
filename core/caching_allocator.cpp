#include "core/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace ring {
namespace {
constexpr std::size_t kStepAlignment = 64, kSmallest = 256, kGranule = std::size_t{2} << 20;
}

std::size_t CachingAllocator::size_class(std::size_t bytes) {
  const std::size_t n = std::max(bytes, kSmallest);
  const std::size_t step = std::clamp(std::bit_floor(n) / 8, kStepAlignment, kGranule);
  return (n + step - 1) / step * step;
}

void* CachingAllocator::take_cached(std::size_t size) {
  const auto found = cached_.find(size);
  if (found == cached_.end() || found->second.empty()) return nullptr;
  void* p = found->second.back();
  found->second.pop_back();
  cached_bytes_ -= size;
  return p;
}

void* CachingAllocator::allocate(std::size_t bytes) {
  // size_class() would overflow above half of the address space. The system refuses the clamped amount as well.
  const std::size_t size = size_class(std::min(bytes, std::numeric_limits<std::size_t>::max() / 2));
  std::lock_guard lock(mutex_);
  void* p = take_cached(size);
  if (!p) {
    p = take(size);
    if (!p) {
      release_cached();
      wait_until_freed();
      p = take(size);
    }
    if (!p) fail_out_of_memory(bytes, stats_);
    stats_.reserved += size;
  }
  stats_.in_use += bytes;
  stats_.peak = std::max(stats_.peak, stats_.in_use);
  return p;
}

void CachingAllocator::free(void* p, std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  std::lock_guard lock(mutex_);
  stats_.in_use -= bytes;
  if (cached_bytes_ + size > max_cached_) {
    give_back(p, size);
    stats_.reserved -= size;
    return;
  }
  cached_[size].push_back(p);
  cached_bytes_ += size;
}

void CachingAllocator::release_cached() {
  for (const auto& [size, list] : cached_) {
    for (void* p : list) give_back(p, size);
    stats_.reserved -= size * list.size();
  }
  cached_.clear();
  cached_bytes_ = 0;
}

void CachingAllocator::trim() {
  std::lock_guard lock(mutex_);
  release_cached();
  wait_until_freed();
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak = stats_.in_use;
}

}  // namespace ring
