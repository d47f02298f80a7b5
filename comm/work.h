#pragma once
// The handle of one asynchronous operation. It keeps the operation's tensors alive until it was waited for.
//
// On a device they may be freed then because the stream that owns them runs what comes after the operation: wait with
// the stream whose allocator they came from, or on the host. Work that is never waited for frees them too early.

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "job/wait_time.h"

namespace ring {

// The failure of operations that end without an error of their own, such as kernels that were told to give up.
class WorkGuard {
 public:
  virtual ~WorkGuard() = default;
  virtual void check() const = 0;  // throws it
};

class Work {
 public:
  Work() = default;  // already done
  Work(Event done, std::vector<Tensor> held, std::shared_ptr<const WorkGuard> guard = nullptr)
      : done_(std::move(done)), held_(std::move(held)), guard_(std::move(guard)) {}

  bool done() const { return done_.done(); }

  // Later work on `stream` starts after this operation; a failure that is known by then is thrown. A CPU stream runs
  // inline: there the caller blocks, and a failure (a lost peer, a timeout, a mismatch between ranks) is thrown as
  // Error.
  void wait(const Stream& stream) {
    if (guard_ && stream.device().backend == Backend::cpu) return synchronize();  // host waits: transport
    if (guard_) guard_->check();
    const WaitForGroups waiting;
    stream.wait(done_);
    held_.clear();
  }

  // Blocks the host, and throws the failure.
  void synchronize() {
    const WaitForGroups waiting;
    if (guard_) {  // what has failed may never be done
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
