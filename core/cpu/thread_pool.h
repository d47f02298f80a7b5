#pragma once
// A fixed set of threads that run one loop at a time. Work is cut statically, so that the same thread count gives the
// same bits; the thread count is part of a run's layout. An exception in any part is rethrown to the caller.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ring {

// A reference to a callable that outlives the call: no allocation, unlike std::function.
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
  explicit ThreadPool(int threads);  // the caller is one of them: threads - 1 are started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs fn(begin, end, thread) over [0, n) cut in at most size() contiguous parts of at least `grain` elements; the
  // cuts fall on multiples of `align`. Returns when all parts are done; the caller runs those whose threads have not
  // come when its own is done, with their numbers, so parts must not wait for each other. One caller at a time; a call
  // from inside runs serially.
  void parallel_for(std::int64_t n, std::int64_t grain, RangeFn fn, std::int64_t align = 1);

  // The part of [0, n) that `part` of `parts` gets.
  static std::int64_t cut(std::int64_t n, std::int64_t align, int parts, int part);

 private:
  void stop();
  void work(int thread);
  bool take(int part);
  void run_part(int part);
  template <class T>
  void wait_while_equal(const std::atomic<T>& value, T old, int thread);
  void note_core(int thread);
  void leave_taken_core(int thread);

  std::vector<std::thread> workers_;
  std::vector<std::atomic<int>> core_;             // where each thread was seen last; -1: nowhere
  std::vector<std::atomic<std::uint64_t>> turns_;  // of each part: odd while it is open to whoever takes it first
  std::atomic<std::uint32_t> generation_{0};       // a change wakes the workers
  std::atomic<int> pending_{0};                    // parts that are open or taken, besides the caller's own
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  const RangeFn* fn_ = nullptr;
  std::int64_t n_ = 0, align_ = 1;
  int parts_ = 0;
  bool spin_ = true;
};

int default_threads();  // RINGMASTER_THREADS, else the cores this process may run on

}  // namespace ring
