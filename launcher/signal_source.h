#pragma once
// Receives signals through a file descriptor. The signals stay blocked while the object exists. Create it before any
// thread, because threads inherit the blocked signals.

#include <csignal>
#include <vector>

#include "job/socket.h"

namespace ring {

class SignalSource {
 public:
  explicit SignalSource(const std::vector<int>& numbers);  // receives these and SIGCHLD, except ignored signals
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  int fd() const { return fd_.get(); }
  int next();  // returns 0 if there is no signal

 private:
  sigset_t set_, saved_;
  Fd fd_;
};

}  // namespace ring
