#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which schedulers send ahead of a time limit) ask the loop to finish its step,
// save and end; where usr1_saves(), SIGUSR1 asks it to save and go on. A second one ends the process at once. Within
// kOneSignal of the first it is the same one: timeout(1) signals the process and then its group.
//
// A thread of its own waits for them, and every other thread has them blocked: with a handler on the computing threads,
// half of the interrupted runs ended with a damaged heap inside of oneDNN's generated matrix products. The likely
// reason is that those use the stack pointer for data, where the kernel then writes the handler's frame.

#include <atomic>
#include <chrono>
#include <thread>

namespace ring {

inline constexpr std::chrono::milliseconds kOneSignal{200};

// Returns whether the process was told to stop while it had a StopSignal. For work that may take long in places that no
// StopSignal is handed to, such as the reading of files.
bool stop_requested();

// Returns whether the process ignores the signal, as programs started by nohup(1) or in the background of a shell do.
bool is_ignored(int signal);

// Makes signals end the process if it is process 1 of a container, for which the kernel takes no default action.
void end_on_signals_as_process_1();

class StopSignal {
 public:
  // Before any other thread is started: threads inherit the mask. announces: says that it was told to stop.
  explicit StopSignal(bool announces = true);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  bool requested() const { return requested_.load(); }
  void steps_begin() { stepping_ = true; }  // until then there is no step to finish
  void usr1_saves() { usr1_saves_ = true; }
  bool save_requested() const { return save_requested_.load(); }
  // All ranks save now. A launcher signals every rank, so what arrives within kOneSignal is the same request.
  void save_begins();

 private:
  void wait();
  void ask_to_save();
  const bool announces_;
  std::atomic<bool> requested_{false}, closing_{false}, stepping_{false}, usr1_saves_{false}, save_requested_{false};
  std::atomic<std::chrono::steady_clock::time_point> save_began_{};
  std::thread thread_;
};

}  // namespace ring
