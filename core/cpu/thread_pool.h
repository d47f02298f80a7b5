#pragma once
// A fixed set of threads that run one loop at a time. Work is partitioned statically, so the same thread count gives
// bit-identical results; the thread count is part of a run's layout. An exception in any part is rethrown to the
// caller.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ring {

// A non-owning reference to a callable, which must outlive the call. Unlike std::function, it does not allocate.
class RangeFn {
 public:
  template <class F>
  RangeFn(const F& f)  // NOLINT: conversion is the point
      : object_(&f),
        call_([](const void* o, std::int64_t a, std::int64_t b, int t) { (*static_cast<const F*>(o))(a, b, t); }) {}
  void operator()(std::int64_t begin, std::int64_t end, int thread) const { call_(object_, begin, end, thread); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, std::int64_t, int);
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller is one of the threads: starts threads - 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs fn(begin, end, thread) over [0, n) and returns when all parts are done. There are at most size() contiguous
  // parts of at least `grain` elements, with borders at multiples of `align`. After its own part, the caller also runs
  // the parts whose threads have not started, and passes these threads' numbers. Parts must therefore not wait for each
  // other. Only one thread at a time may call parallel_for(). A nested call runs serially.
  void parallel_for(std::int64_t n, std::int64_t grain, RangeFn fn, std::int64_t align = 1);

  // Returns the start of part `part` if [0, n) is split into `num_parts` parts.
  static std::int64_t part_begin(std::int64_t n, std::int64_t align, int num_parts, int part);

 private:
  void stop();
  void run_worker(int thread);
  bool claim_part(int part);
  void run_part(int part);
  template <class T>
  void wait_while_equal(const std::atomic<T>& value, T old, int thread);
  void record_core(int thread);
  void avoid_shared_core(int thread);

  std::vector<std::thread> workers_;
  std::vector<std::atomic<int>> core_;             // core on which each thread was last seen; -1 if none yet
  std::vector<std::atomic<std::uint64_t>> turns_;  // one per part: odd while any thread may claim the part
  std::atomic<std::uint32_t> generation_{0};       // a change wakes the workers
  std::atomic<int> pending_{0};                    // unfinished parts other than the caller's own
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const RangeFn* fn_ = nullptr;
  std::int64_t n_ = 0, align_ = 1;
  int parts_ = 0;
  bool spin_ = true;
};

int default_threads();  // RINGMASTER_THREADS, or the number of cores this process may use

}  // namespace ring
