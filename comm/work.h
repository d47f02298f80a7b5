#pragma once
// Handle of an asynchronous operation. It keeps the operation's tensors alive until a wait.
//
// On a device, the tensors may be freed after the wait because their stream runs later work after the operation: wait
// on the stream whose allocator they came from, or on the host. Work that is never waited for frees them too early.

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "job/wait_time.h"

namespace ring {

// Reports failures of operations that end without an error of their own, such as kernels that were told to give up.
class WorkGuard {
 public:
  virtual ~WorkGuard() = default;
  virtual void check() const = 0;  // throws the failure, if any
};

class Work {
 public:
  Work() = default;  // work that is done
  Work(Event done, std::vector<Tensor> held, std::shared_ptr<const WorkGuard> guard = nullptr)
      : done_(std::move(done)), held_(std::move(held)), guard_(std::move(guard)) {}

  bool done() const { return done_.done(); }

  // Makes later work on `stream` start after this operation. Throws a failure that is already known. On a CPU stream,
  // blocks the caller, and throws Error on failure (a lost peer, a timeout, a mismatch between ranks).
  void wait(const Stream& stream) {
    if (guard_ && stream.device().backend == Backend::cpu) return synchronize();  // host waits: transport
    if (guard_) guard_->check();
    const WaitForGroups waiting;
    stream.wait(done_);
    held_.clear();
  }

  // Blocks the host until the operation is done. Throws its failure.
  void synchronize() {
    const WaitForGroups waiting;
    if (guard_) {  // a failed operation may never be done
      for (count_host_wait(); !done_.done(); std::this_thread::sleep_for(std::chrono::microseconds(50)))
        guard_->check();
      guard_->check();
    }
    done_.synchronize();  // host waits: transport
    held_.clear();
  }

 private:
  Event done_;
  std::vector<Tensor> held_;
  std::shared_ptr<const WorkGuard> guard_;
};

}  // namespace ring
