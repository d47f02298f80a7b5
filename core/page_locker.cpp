#include "core/page_locker.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/numa.h"

namespace ring {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Makes the system allocate the pages. Does not change their contents, because the owner may be writing to them.
void touch(std::byte* begin, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE  // since Linux 5.14
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) fail("the system has no more memory: ", std::strerror(errno));
#endif
  for (std::size_t i = 0; i < bytes; i += kPage)
    std::atomic_ref(reinterpret_cast<unsigned char&>(begin[i])).fetch_or(0, std::memory_order_relaxed);
}

// An anonymous mapping of zeroed memory, aligned to large pages.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : whole_(rounded(bytes, kLargePage) + kLargePage) {
    mapped_ = mmap(nullptr, whole_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) fail("cannot reserve ", bytes_text(bytes), " of address space: ", std::strerror(errno));
    const auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    begin_ = static_cast<std::byte*>(mapped_) + (rounded(address, kLargePage) - address);
    madvise(begin_, whole_ - kLargePage, MADV_HUGEPAGE);  // best effort
  }
  ~Mapping() { munmap(mapped_, whole_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* begin() const { return begin_; }

 private:
  std::size_t whole_;
  void* mapped_;
  std::byte* begin_;
};

}  // namespace

struct PageLocker::Slab {
  std::byte* begin;
  std::size_t bytes;
  enum class State { waiting, in_work, locked, refused } state = State::waiting;
};

struct PageLocker::Region {
  Region(std::size_t size, std::size_t slab) : mapping(size), bytes(size) {
    for (std::size_t at = 0; at < bytes; at += slab)
      slabs.push_back({mapping.begin() + at, rounded(std::min(slab, bytes - at), kPage)});
  }
  std::size_t count(Slab::State state) const {
    return static_cast<std::size_t>(std::ranges::count(slabs, state, &Slab::state));
  }
  std::size_t locked() const {
    std::size_t sum = 0;
    for (const Slab& s : slabs) sum += s.state == Slab::State::locked ? s.bytes : 0;
    return sum;
  }

  const Mapping mapping;
  const std::size_t bytes;
  std::vector<Slab> slabs;
  std::string refused;  // reason of a failed lock, after which no further slab is tried
};

struct PageLocker::Shared {
  Shared(PageLockCalls c, std::size_t s) : calls(std::move(c)), slab(s) {}
  Region* region_of(const std::byte* p) const;
  void lock(Region&, Slab&, std::unique_lock<std::mutex>&);
  void wait(Region&, Slab&, std::unique_lock<std::mutex>&);
  void work();
  void release(const std::byte* begin);

  const PageLockCalls calls;
  const std::size_t slab;
  std::mutex mutex;  // protects all members below
  std::condition_variable changed;
  std::map<const std::byte*, std::unique_ptr<Region>> regions;  // regions by begin address
  std::deque<std::pair<Region*, Slab*>> queue;
  double waited = 0;
  bool stopping = false;
};

PageLocker::Region* PageLocker::Shared::region_of(const std::byte* p) const {
  const auto after = regions.upper_bound(p);
  if (after == regions.begin()) return nullptr;
  Region* const region = std::prev(after)->second.get();
  return p < region->mapping.begin() + region->bytes ? region : nullptr;
}

void PageLocker::Shared::lock(Region& region, Slab& s, std::unique_lock<std::mutex>& held) {
  s.state = Slab::State::in_work;
  held.unlock();
  std::string problem;
  try {
    touch(s.begin, s.bytes);
    calls.lock(s.begin, s.bytes);
  } catch (const std::exception& e) {
    problem = str("-", e.what());  // the '-' marks a failure even if what() is empty
  }
  held.lock();
  s.state = problem.empty() ? Slab::State::locked : Slab::State::refused;
  if (!problem.empty()) region.refused = problem.substr(1);
  changed.notify_all();
}

// Waits for a slab. A slab that no thread has begun is locked by the caller itself.
void PageLocker::Shared::wait(Region& region, Slab& s, std::unique_lock<std::mutex>& held) {
  const double since = seconds_now();
  while (s.state != Slab::State::locked) {
    if (!region.refused.empty())
      throw OutOfHostMemory(str("out of host memory for copies of device memory: of ", bytes_text(region.bytes),
                                ", only ", bytes_text(region.locked()), " could be locked: ", region.refused));
    if (s.state == Slab::State::waiting)
      lock(region, s, held);
    else
      changed.wait(held);
  }
  waited += seconds_now() - since;
}

void PageLocker::Shared::work() {
  std::unique_lock held(mutex);
  while (true) {
    changed.wait(held, [&] { return stopping || !queue.empty(); });
    if (stopping) return;
    const auto [region, s] = queue.front();
    queue.pop_front();
    if (s->state == Slab::State::waiting && region->refused.empty()) lock(*region, *s, held);
  }
}

void PageLocker::Shared::release(const std::byte* begin) {
  std::unique_lock held(mutex);
  Region& region = *regions.at(begin);
  std::erase_if(queue, [&](const auto& next) { return next.first == &region; });
  changed.wait(held, [&] { return region.count(Slab::State::in_work) == 0; });
  const auto gone = regions.extract(begin);
  held.unlock();
  for (const Slab& s : region.slabs)
    if (s.state == Slab::State::locked) calls.unlock(s.begin);
}

PageLocker::PageLocker(PageLockCalls calls, int threads, std::optional<int> node, std::size_t slab)
    : shared_(std::make_shared<Shared>(std::move(calls), slab)), max_threads_(threads), node_(node) {
  RING_CHECK(slab > 0 && slab % kLargePage == 0, "slabs of ", slab, " bytes are not a multiple of a large page");
}

PageLocker::~PageLocker() {
  const std::lock_guard held(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
}  // the destructors of threads_ then join the threads

std::shared_ptr<void> PageLocker::allocate(std::size_t bytes) {
  auto region = std::make_unique<Region>(bytes, shared_->slab);
  std::byte* const begin = region->mapping.begin();
  if (node_) prefer_node(begin, rounded(bytes, kPage), *node_);
  const std::lock_guard held(shared_->mutex);
  for (Slab& s : region->slabs) shared_->queue.emplace_back(region.get(), &s);
  shared_->regions.emplace(begin, std::move(region));
  shared_->changed.notify_all();
  while (std::ssize(threads_) < max_threads_) threads_.emplace_back([shared = shared_] { shared->work(); });
  return {begin, [shared = shared_](void* p) { shared->release(static_cast<std::byte*>(p)); }};
}

std::size_t PageLocker::wait_until_locked(const void* p, std::size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(p);
  std::unique_lock held(shared_->mutex);
  Region* const region = shared_->region_of(at);
  if (!region) return bytes;
  const auto offset = static_cast<std::size_t>(at - region->mapping.begin());
  Slab& s = region->slabs[offset / shared_->slab];
  if (s.state != Slab::State::locked) shared_->wait(*region, s, held);
  return std::min(bytes, shared_->slab - offset % shared_->slab);
}

PageLockFacts PageLocker::facts() const {
  const std::lock_guard held(shared_->mutex);
  PageLockFacts facts{.node = node_, .waited = shared_->waited};
  for (const auto& [begin, region] : shared_->regions) {
    facts.taken += region->bytes;
    facts.locked += std::min(region->bytes, region->locked());
  }
  return facts;
}

}  // namespace ring
