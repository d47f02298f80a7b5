#pragma once
// Watches a few steps of a trainer, kernel by kernel, without waiting for the device inside of them: events are
// recorded around each kernel and read when the steps are over.

#include <chrono>
#include <memory>

#include "inspect/profile.h"

namespace ring {

class StepRecorder;
class Trainer;

class Profiler {
 public:
  static constexpr int kWarmup = 4;  // steps that are not watched: they measure choices and plan memory
  // also: who watches all steps, these included; null: nobody.
  explicit Profiler(int steps, std::shared_ptr<KernelObserver> also = nullptr, int warmup = kWarmup);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void before_launch(Trainer&);  // around each step
  bool after_launch(Trainer&);   // true: that was the last step to watch
  // To be called with no step in flight. No steps in it: none was watched.
  Profile read() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool watching() const { return launched_ >= warmup_ && launched_ < warmup_ + steps_; }

  std::shared_ptr<StepRecorder> recorder_;
  std::shared_ptr<KernelObserver> also_;
  int steps_, warmup_, launched_ = 0;
};

}  // namespace ring
