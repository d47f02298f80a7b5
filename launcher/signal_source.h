#pragma once
// Signals arrive at a descriptor while this lives. To be made before any thread, which inherits that they are blocked.

#include <csignal>
#include <vector>

#include "job/socket.h"

namespace ring {

class SignalSource {
 public:
  explicit SignalSource(const std::vector<int>& numbers);  // and SIGCHLD
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  int fd() const { return fd_.get(); }
  int next();  // 0: none

 private:
  sigset_t set_, saved_;
  Fd fd_;
};

}  // namespace ring
