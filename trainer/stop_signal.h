#pragma once
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which schedulers send ahead of a time limit) ask the loop to finish its step,
// save and end; a second one ends the process at once.

namespace ring {

class StopSignal {
 public:
  StopSignal();   // takes the signals over; one object per process
  ~StopSignal();  // gives them back
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  bool requested() const;
};

}  // namespace ring
