#include "core/cuda/pinned_staging.h"

#include <algorithm>

#include "core/cuda/check.h"

namespace ring::cuda {

std::shared_ptr<void> pinned_memory(std::size_t bytes) {
  void* p = nullptr;
  RING_CUDA_CHECK(cudaMallocHost(&p, bytes ? bytes : 1));
  return {p, [](void* q) { cudaFreeHost(q); }};
}

void* PinnedStaging::take(std::size_t bytes) {
  RING_CHECK(bytes <= kStagingBytes / 2, "staging of ", bytes, " bytes, the most is ", kStagingBytes / 2);
  if (!memory_) memory_ = pinned_memory(kStagingBytes);
  const std::size_t begin = next_ + bytes <= kStagingBytes ? next_ : 0, end = begin + bytes;
  // Copies are made in the order in which pieces were taken. After a turn the newest piece in the way need not be the
  // oldest of all: it, and so all before it, must be done.
  const auto in_the_way = [&](const Piece& p) { return p.begin < end && begin < p.end; };
  const auto newest = std::find_if(in_flight_.rbegin(), in_flight_.rend(), in_the_way);
  if (newest != in_flight_.rend()) newest->done.synchronize();
  in_flight_.erase(in_flight_.begin(), newest.base());
  while (!in_flight_.empty() && in_flight_.front().done.done()) in_flight_.pop_front();
  in_flight_.push_back({begin, end, {}});
  next_ = (end + 255) / 256 * 256;
  return static_cast<std::byte*>(memory_.get()) + begin;
}

void PinnedStaging::taken_until(const Event& done) { in_flight_.back().done = done; }

}  // namespace ring::cuda
