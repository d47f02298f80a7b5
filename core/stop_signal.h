#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which schedulers send ahead of a time limit) ask the training loop to finish its
// step, save and exit. After usr1_saves(), SIGUSR1 asks it to save and continue. A second signal ends the process at
// once. A signal within kSameSignalWithin of the first counts as the same one, because timeout(1) signals the process
// and then its group.
//
// A dedicated thread waits for these signals, and all other threads block them. With a handler on the computing
// threads, half of the interrupted runs ended with a corrupted heap inside oneDNN's JIT-generated GEMMs. The likely
// reason is that these use the stack pointer for data, and the kernel writes the handler's frame there.

#include <atomic>
#include <chrono>
#include <thread>

namespace ring {

inline constexpr std::chrono::milliseconds kSameSignalWithin{200};  // signals closer together count as one

// Returns true if the process was told to stop while it had a StopSignal. For long-running code that has no StopSignal,
// such as code that reads files.
bool stop_requested();

// Returns true if the process ignores the signal, as do programs started by nohup(1) or in the background of a shell.
bool is_ignored(int signal);

// Makes signals end the process if it is process 1 of a container, for which the kernel has no default action.
void end_on_signals_as_process_1();

class StopSignal {
 public:
  // Create it before any other thread: threads inherit the signal mask.
  // If `announces` is true, logs that the process was told to stop.
  explicit StopSignal(bool announces = true);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  bool requested() const { return requested_.load(); }
  void on_steps_begin() { stepping_ = true; }  // call it before the first step; until then, there is no step to finish
  void usr1_saves() { usr1_saves_ = true; }
  bool save_requested() const { return save_requested_.load(); }
  // Call it when all ranks begin to save. A launcher signals every rank, so a SIGUSR1 within kSameSignalWithin after
  // the call belongs to the request that is being saved.
  void on_save_begin();

 private:
  void wait();
  void request_save();
  const bool announces_;
  std::atomic<bool> requested_{false}, closing_{false}, stepping_{false}, usr1_saves_{false}, save_requested_{false};
  std::atomic<std::chrono::steady_clock::time_point> save_began_{};
  std::thread thread_;
};

}  // namespace ring
