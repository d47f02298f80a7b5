#pragma once
// Profiles a few steps of a trainer kernel by kernel, without synchronizing within the steps: records events around
// each kernel and reads them after the steps.

#include <chrono>
#include <memory>

#include "inspect/profile.h"

namespace ring {

class StepRecorder;
class Trainer;

class Profiler {
 public:
  static constexpr int kWarmup = 4;  // unprofiled steps in which kernels are tuned and memory is planned
  // also_observer: an observer of all steps, including the warmup steps; may be null.
  explicit Profiler(int steps, std::shared_ptr<KernelObserver> also_observer = nullptr, int warmup = kWarmup);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void before_launch(Trainer&);  // call before each step
  bool after_launch(Trainer&);   // call after each step; returns true after the last step to profile
  // Returns the profile; `steps` is empty if no step was profiled. There must be no step in flight.
  Profile read_profile() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool watching() const { return launched_ >= warmup_ && launched_ < warmup_ + steps_; }

  std::shared_ptr<StepRecorder> recorder_;
  std::shared_ptr<KernelObserver> also_;
  int steps_, warmup_, launched_ = 0;
};

}  // namespace ring
