#pragma once
// Which steps a run must not take, and how often it may go on after one: losses and gradient norms that are not finite,
// or that stick out from those of the steps before.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

// A step that was not accepted, and the samples that its batch, or the rollback over it, left out.
struct BadStep {
  std::int64_t step = 0;                          // it would have been
  std::int64_t first_sample = 0, end_sample = 0;  // left out: [first, end)
  double loss = 0, norm = 0;
};

class StepGuard {
 public:
  explicit StepGuard(const TrainConfig& c) : config_(c) {}

  // The largest loss and gradient norm of a good step; 0: any finite one.
  struct Limits {
    double loss = 0, norm = 0;
  };
  // For a step that is launched when `known` was the last whose result counts. Nothing that came later is used, so that
  // a resumed run, which knows more at first, has the same limits. They are median + train.spike_score x spread of the
  // last kHistory accepted steps, once there are kLeastHistory; spread: 1.4826 x median absolute deviation, the
  // standard deviation of normal values (Rousseeuw and Croux 1993), at least kLeastSpread of the median.
  Limits limits(std::int64_t known) const;
  static constexpr std::size_t kHistory = 128, kLeastHistory = 32;
  static constexpr double kLeastSpread = 0.02;

  void accept(std::int64_t step, double loss, double norm);
  // What to do about a bad step: train.on_bad_step, or stop where there were too many.
  OnBadStep judge(std::int64_t step) const;
  void leave_out(const BadStep& bad) { bad_.push_back(bad), remember(); }
  const std::vector<BadStep>& bad_steps() const { return bad_; }

  std::string* state() { return &state_; }  // for checkpoints
  void restored();                          // after it was loaded
  // After an earlier checkpoint was loaded: its history holds, and the bad steps known before stay known.
  void rolled_back(std::vector<BadStep> known_before);

 private:
  struct Accepted {
    std::int64_t step;
    double loss, norm;
  };
  void remember();

  const TrainConfig& config_;
  std::deque<Accepted> history_;
  std::vector<BadStep> bad_;
  std::string state_ = "{}";
};

}  // namespace ring
