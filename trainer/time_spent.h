#pragma once
// Divides the time of a run's process, from its first step on, into steps, evaluations and saves.

#include <cstdint>
#include <string>

#include "core/clock.h"

namespace ring {

std::string format_duration(double seconds);  // e.g. "45s", "3m05s", "2h03m", "4d05h"; "?" if unknown

// Durations in seconds.
struct TimeSpent {
  double total = 0;        // measured by CLOCK_MONOTONIC
  double evaluations = 0;  // validation and evaluation tasks
  double saves = 0;        // time that training waited for saves
  double not_running = 0;  // time in which the process was stopped or got no CPU (core/awake_clock.h)
  // Returns the time spent in steps, including kernel measurements in the first step.
  double steps() const { return total - evaluations - saves - not_running; }
  // Returns e.g. "15m12s", or "15m12s: 11m08s of steps, 3m59s of evaluations, 5s of saves" if steps take less than 98
  // %.
  std::string text() const;
};

class TimeAccount {
 public:
  // Adds the time between its construction and destruction to a sum.
  class Timer {
   public:
    explicit Timer(double& sum) : sum_(sum), begun_(seconds_now()) {}
    ~Timer() { sum_ += seconds_now() - begun_; }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    double& sum_;
    double begun_;
  };

  Timer evaluating() { return Timer(evaluations_); }
  Timer saving() { return Timer(saves_); }
  TimeSpent spent() const;

 private:
  double evaluations_ = 0, saves_ = 0;
  double awake_since_ = seconds_now();
  std::int64_t since_ = nanoseconds_now();
};

}  // namespace ring
