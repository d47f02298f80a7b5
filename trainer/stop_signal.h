#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which schedulers send ahead of a time limit) ask the loop to finish its step,
// save and end; a second one ends the process at once.
//
// A thread of its own waits for them, and every other thread has them blocked: no handler may ever interrupt a kernel,
// because generated code (oneDNN's matrix products) uses the stack pointer for data, and the kernel would write the
// handler's frame there.

#include <atomic>
#include <thread>

namespace ring {

class StopSignal {
 public:
  StopSignal();  // before any other thread is started: threads inherit the mask
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  bool requested() const { return requested_.load(); }

 private:
  void wait();
  std::atomic<bool> requested_{false}, closing_{false};
  std::thread thread_;
};

}  // namespace ring
