#pragma once
// A bounded queue of jobs that several threads process and one thread receives in submission order. take() rethrows the
// first exception of any thread.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace ring {

template <class Job, class Result>
class OrderedQueue {
 public:
  explicit OrderedQueue(std::size_t in_flight) : limit_(in_flight) {}

  // Called by the producer; waits while the queue is full. Returns false if the queue was stopped.
  bool push(Job job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || pushed_ - taken_ < limit_; });
    if (stopped_) return false;
    jobs_.emplace_back(pushed_++, std::move(job));
    changed_.notify_all();
    return true;
  }
  void close() {  // called by the producer after the last job
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  // Called by workers; waits for a job. Returns nullopt if there are no more jobs or the queue was stopped.
  std::optional<std::pair<std::uint64_t, Job>> next_job() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || closed_ || !jobs_.empty(); });
    if (stopped_ || jobs_.empty()) return std::nullopt;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }
  // Called by workers with the number and the result of a job.
  void finish(std::uint64_t number, Result result) {
    const std::lock_guard lock(mutex_);
    done_.emplace(number, std::move(result));
    changed_.notify_all();
  }

  // Ends all waits. After that, take() rethrows the first error that was passed, if any.
  void stop(std::exception_ptr error = nullptr) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    stopped_ = true;
    changed_.notify_all();
  }

  // Called by the consumer. Returns results in the order of push(), then nullopt. Rethrows the first error.
  std::optional<Result> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || done_.contains(taken_) || (closed_ && taken_ == pushed_); });
    if (error_) std::rethrow_exception(error_);
    const auto found = done_.find(taken_);
    if (stopped_ || found == done_.end()) return std::nullopt;
    Result result = std::move(found->second);
    done_.erase(found);
    ++taken_;
    changed_.notify_all();
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::uint64_t, Job>> jobs_;
  std::map<std::uint64_t, Result> done_;
  std::uint64_t pushed_ = 0, taken_ = 0;
  std::size_t limit_;
  bool closed_ = false, stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace ring
