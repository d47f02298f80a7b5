#pragma once
// A stream that reveals missing dependencies between streams.

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/copy_stream.h"
#include "core/stream.h"

namespace ring::test {

// Runs its work as late as possible: when somebody waits for an event recorded after it.
class LateStream : public StreamImpl {
 public:
  LateStream() { device = {Backend::cpu, 0}; }
  Event record() override { return Event(std::make_shared<Mark>(queue_, queue_->queued)); }
  Event record_time() override { return record(); }
  void wait(const Event& e) override {
    push([e] { e.synchronize(); });
  }
  void synchronize() override { queue_->run(queue_->queued); }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    push([=] { std::memcpy(dst, src, bytes); });
  }
  void upload(void* dst, const void* host, std::size_t bytes) override {
    const auto* const begin = static_cast<const std::byte*>(host);
    push([dst, kept = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(dst, kept.data(), kept.size()); });
  }
  void fill_zero(void* dst, std::size_t bytes) override {
    push([=] { std::memset(dst, 0, bytes); });
  }

 private:
  struct Queue {
    std::deque<std::function<void()>> work;
    std::size_t queued = 0, done = 0;
    void run(std::size_t until) {
      for (; done < until; ++done) {
        work.front()();
        work.pop_front();
      }
    }
  };
  class Mark final : public EventImpl {
   public:
    Mark(std::shared_ptr<Queue> queue, std::size_t at) : queue_(std::move(queue)), at_(at) {}
    bool done() const override { return queue_->done >= at_; }
    void synchronize() const override { queue_->run(at_); }

   private:
    std::shared_ptr<Queue> queue_;
    std::size_t at_;
  };
  void push(std::function<void()> work) {
    queue_->work.push_back(std::move(work));
    ++queue_->queued;
  }

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

inline Stream late_stream() {
  Stream stream(std::make_shared<LateStream>());
  stream.impl().allocator = Stream::cpu(1).allocator();
  return stream;
}

// Makes copy streams of CPU devices run as late as events allow, for as long as the object lives.
struct LateCopies {
  LateCopies() { make_cpu_copy_stream = late_stream; }
  ~LateCopies() { make_cpu_copy_stream = nullptr; }
  LateCopies(const LateCopies&) = delete;
  LateCopies& operator=(const LateCopies&) = delete;
};

}  // namespace ring::test
