#pragma once
// Handle of an asynchronous operation, like torch.distributed.Work. It keeps the operation's tensors alive until the
// first wait() or synchronize().
//
// On a device, wait on the stream whose allocator the tensors came from, or on the host. Later work that reuses their
// memory then runs after the operation. A Work that is destroyed without a wait frees its tensors too early.

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "job/wait_time.h"

namespace ring {

// Reports failures of operations that end without an error of their own: after an abort, a communication kernel stops
// waiting for its peers and ends normally.
class WorkGuard {
 public:
  virtual ~WorkGuard() = default;
  virtual void check() const = 0;  // throws the failure, if any
};

class Work {
 public:
  Work() = default;  // an operation that has already ended
  Work(Event done, std::vector<Tensor> held, std::shared_ptr<const WorkGuard> guard = nullptr)
      : done_(std::move(done)), held_(std::move(held)), guard_(std::move(guard)) {}

  bool done() const { return done_.done(); }

  // Makes later work on `stream` start after this operation. Throws the operation's failure if it is already known. On
  // a CPU stream, blocks the caller until the operation has ended, and throws Error if it failed (a lost peer, a
  // timeout, a mismatch between ranks).
  void wait(const Stream& stream) {
    if (guard_ && stream.device().backend == Backend::cpu) return synchronize();  // allowed host wait: transport (CPU)
    if (guard_) guard_->check();
    const GroupWaitTimer timer;
    stream.wait(done_);
    held_.clear();
  }

  // Blocks the host until the operation is done. Throws its failure.
  void synchronize() {
    const GroupWaitTimer timer;
    if (guard_) {  // polls, because the event of a failed operation may never complete
      count_host_wait();
      while (!done_.done()) {
        guard_->check();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      guard_->check();
    }
    done_.synchronize();  // allowed host wait: transport (callers of this function ask for it)
    held_.clear();
  }

 private:
  Event done_;
  std::vector<Tensor> held_;
  std::shared_ptr<const WorkGuard> guard_;
};

}  // namespace ring
