#pragma once
// The handle of one asynchronous operation. It keeps the operation's tensors alive until it was waited for.

#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ring {

class Work {
 public:
  Work() = default;  // already done
  Work(Event done, std::vector<Tensor> held) : done_(std::move(done)), held_(std::move(held)) {}

  bool done() const { return done_.done(); }

  // Later work on `stream` starts after this operation. A CPU stream runs inline: there the caller blocks, and a
  // failure (a lost peer, a timeout, a mismatch between ranks) is thrown as Error.
  void wait(const Stream& stream) {
    stream.wait(done_);
    held_.clear();
  }

  // Blocks the host, and throws the failure.
  void synchronize() {
    done_.synchronize();  // host waits: transport
    held_.clear();
  }

 private:
  Event done_;
  std::vector<Tensor> held_;
};

}  // namespace ring
