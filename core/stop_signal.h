#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which schedulers send ahead of a time limit) ask the loop to finish its step,
// save and end; a second one ends the process at once. Within kOneSignal of the first it is the same one: timeout(1)
// signals the process and then its group.
//
// A thread of its own waits for them, and every other thread has them blocked: with a handler on the computing threads,
// half of the interrupted runs ended with a damaged heap inside of oneDNN's generated matrix products. The likely
// reason is that those use the stack pointer for data, where the kernel then writes the handler's frame.

#include <atomic>
#include <chrono>
#include <thread>

namespace ring {

inline constexpr std::chrono::milliseconds kOneSignal{200};

class StopSignal {
 public:
  // Before any other thread is started: threads inherit the mask. announces: says that it was told to stop.
  explicit StopSignal(bool announces = true);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  bool requested() const { return requested_.load(); }
  void steps_begin() { stepping_ = true; }  // until then there is no step to finish

 private:
  void wait();
  const bool announces_;
  std::atomic<bool> requested_{false}, closing_{false}, stepping_{false};
  std::thread thread_;
};

}  // namespace ring
