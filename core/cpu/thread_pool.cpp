#include "core/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/unavailable.h"
#include "core/yaml.h"

namespace ring {
namespace {

thread_local bool inside_pool = false;

// A step has a few hundred loops of about 50 us. A worker that slept between two loops would need as long to wake up,
// so it first spins for about 0.4 ms (if a pause takes 140 cycles). On a busy machine its yields give the core to
// others; on an idle machine they return at once. A pool with more threads than its share of the cores does not spin.
constexpr int kSpins = 8000, kSpinsPerYield = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

int default_threads() {
  if (const char* text = std::getenv("RINGMASTER_THREADS")) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end == text || *end != 0 || n < 1 || n > 4096)
      fail("RINGMASTER_THREADS is '", shown(text), "': set it to a number of threads from 1 to 4096");
    return static_cast<int>(n);
  }
  return available_cores();
}

ThreadPool::ThreadPool(int threads)
    : core_(static_cast<std::size_t>(std::max(1, threads))), turns_(core_.size()), spin_(threads <= available_cores()) {
  RING_CHECK(threads >= 1, "a thread pool needs at least one thread, got ", threads);
  for (std::atomic<int>& core : core_) core = -1;
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { run_worker(t); });
  } catch (const std::system_error& e) {
    const std::size_t started = workers_.size();
    stop();  // ends the workers, because no destructor runs after a throw here
    fail_without(Resource::threads, "cannot start ", threads, " threads: after ", started + 1,
                 ", the system reported '", std::generic_category().message(e.code().value()),
                 "'. Raise the limit on processes (ulimit -u, pids.max of the control group) or on memory");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& w : workers_) w.join();
}

std::int64_t ThreadPool::part_begin(std::int64_t n, std::int64_t align, int num_parts, int part) {
  const std::int64_t blocks = (n + align - 1) / align;
  return std::min(n, blocks * part / num_parts * align);
}

void ThreadPool::record_core(int thread) {
  core_[static_cast<std::size_t>(thread)].store(sched_getcpu(), std::memory_order_relaxed);
}

// A scheduler may wake a worker on a core where a different thread of the pool computes, and leave it there. Both
// threads then yield to each other on one core while another core is idle, for tens of milliseconds. An idle thread
// that finds itself on the core of a thread with a lower number moves to a core where no thread of the pool was seen.
void ThreadPool::avoid_shared_core(int thread) {
  record_core(thread);
  const auto core = [&](int t) { return core_[static_cast<std::size_t>(t)].load(std::memory_order_relaxed); };
  const int mine = core(thread);
  int lower = 0;
  while (lower < thread && core(lower) != mine) ++lower;
  cpu_set_t allowed, free;
  if (lower == thread || mine < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  free = allowed;
  for (const std::atomic<int>& seen : core_)  // not size(): threads may still be starting
    if (const int c = seen.load(std::memory_order_relaxed); c >= 0 && c < CPU_SETSIZE) CPU_CLR(c, &free);
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

template <class T>
void ThreadPool::wait_while_equal(const std::atomic<T>& value, T old, int thread) {
  for (int i = 0; spin_ && i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
    if (i % kSpinsPerYield != kSpinsPerYield - 1) continue;
    avoid_shared_core(thread);
    std::this_thread::yield();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Claims a part for the calling thread; returns false if it cannot be claimed. Only the owner of a part may read the
// loop's parameters: they are written before parts can be claimed, and stay valid until all claimed parts are done.
bool ThreadPool::claim_part(int part) {
  std::atomic<std::uint64_t>& turn = turns_[static_cast<std::size_t>(part)];
  std::uint64_t now = turn.load(std::memory_order_acquire);
  return now % 2 == 1 && turn.compare_exchange_strong(now, now + 1, std::memory_order_acq_rel);
}

void ThreadPool::run_part(int part) {
  const std::int64_t begin = part_begin(n_, align_, parts_, part), end = part_begin(n_, align_, parts_, part + 1);
  if (begin == end) return;
  try {
    (*fn_)(begin, end, part);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::run_worker(int thread) {
  inside_pool = true;
  std::uint32_t seen = 0;
  while (true) {
    wait_while_equal(generation_, seen, thread);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!claim_part(thread)) continue;
    run_part(thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_all();
  }
}

// On a busy machine a worker may get no core for milliseconds, a hundred times as long as most loops take, so the
// caller runs parts that no worker has begun.
void ThreadPool::parallel_for(std::int64_t n, std::int64_t grain, RangeFn fn, std::int64_t align) {
  if (n <= 0) return;
  const std::int64_t wanted = std::max<std::int64_t>(1, n / std::max<std::int64_t>(1, grain));
  const int parts = static_cast<int>(std::min<std::int64_t>(wanted, size()));
  if (parts == 1 || inside_pool) return fn(0, n, 0);
  fn_ = &fn;
  n_ = n;
  align_ = align;
  parts_ = parts;
  record_core(0);
  pending_.store(parts - 1, std::memory_order_relaxed);
  for (int t = 1; t < parts; ++t) turns_[static_cast<std::size_t>(t)].fetch_add(1, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  inside_pool = true;
  run_part(0);
  for (int t = 1; t < parts; ++t) {
    if (!claim_part(t)) continue;
    run_part(t);
    pending_.fetch_sub(1, std::memory_order_acq_rel);
  }
  inside_pool = false;
  for (int left = pending_.load(std::memory_order_acquire); left != 0; left = pending_.load(std::memory_order_acquire))
    wait_while_equal(pending_, left, 0);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ring
