#include "core/cuda/pinned_staging.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda/check.h"

namespace ring::cuda {

std::shared_ptr<void> allocate_pinned(std::size_t bytes) {
  void* p = nullptr;
  RING_CUDA_CHECK(cudaMallocHost(&p, bytes ? bytes : 1));
  return {p, [](void* q) {
            use_stream_device();
            cudaFreeHost(q);
          }};
}

namespace {

// Keeps the staging memory of ended streams for new ones: locking it takes the driver 30 ms.
class SpareMemory {
 public:
  std::shared_ptr<void> take() {
    const std::lock_guard held(mutex_);
    if (spare_.empty()) return allocate_pinned(kStagingBytes);
    std::shared_ptr<void> memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }
  void give_back(std::shared_ptr<void> memory) {
    const std::lock_guard held(mutex_);
    spare_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> spare_;
};

SpareMemory& spare_memory() {
  static auto* const all = new SpareMemory;  // never freed: CUDA may be unloaded before static destructors run
  return *all;
}

}  // namespace

PinnedStaging::~PinnedStaging() {
  if (!memory_) return;
  try {
    if (!in_flight_.empty()) in_flight_.back().done.synchronize();  // allowed host wait: shutdown
    spare_memory().give_back(std::move(memory_));
  } catch (const std::exception&) {  // a copy failed, which another call reports; the memory is freed
  }
}

void* PinnedStaging::take(std::size_t bytes) {
  RING_CHECK(bytes <= kStagingBytes / 2, "staging of ", bytes, " bytes exceeds the maximum of ", kStagingBytes / 2);
  if (!memory_) memory_ = spare_memory().take();
  const std::size_t begin = next_ + bytes <= kStagingBytes ? next_ : 0, end = begin + bytes;
  // Copies run in the order of take(). After a wrap-around, the newest overlapping piece need not be the oldest piece:
  // wait for it, and thereby for all before it.
  const auto in_the_way = [&](const Piece& p) { return p.begin < end && begin < p.end; };
  const auto newest = std::find_if(in_flight_.rbegin(), in_flight_.rend(), in_the_way);
  if (newest != in_flight_.rend()) newest->done.synchronize();
  in_flight_.erase(in_flight_.begin(), newest.base());
  while (!in_flight_.empty() && in_flight_.front().done.done()) in_flight_.pop_front();
  in_flight_.push_back({begin, end, {}});
  next_ = (end + 255) / 256 * 256;
  return static_cast<std::byte*>(memory_.get()) + begin;
}

void PinnedStaging::release_after(const Event& done) { in_flight_.back().done = done; }

}  // namespace ring::cuda
