#pragma once
// Decides which steps a run rejects (the loss or gradient norm is not finite, or an outlier among recent steps), and
// how often the run may continue after a rejected step.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

// A step that was not accepted, and the samples that are skipped because of it or of the rollback that followed.
struct BadStep {
  std::int64_t step = 0;                          // number that the step would have had
  std::int64_t first_sample = 0, end_sample = 0;  // skipped samples: [first_sample, end_sample)
  double loss = 0, norm = 0;
};

class StepGuard {
 public:
  explicit StepGuard(const TrainConfig& c) : config_(c) {}

  // Maximum loss and gradient norm of a good step; 0 accepts any finite value.
  struct Limits {
    double loss = 0, norm = 0;
  };
  // Returns the limits for a step that is launched when `last_known_step` is the last step whose result counts. Ignores
  // later steps, so that a resumed run, which knows more results at first, uses the same limits. A limit is median +
  // train.spike_deviations x spread over the last kHistory accepted steps; there is no limit until there are
  // kMinHistory of them. spread: 1.4826 x median absolute deviation, which is the standard deviation for normally
  // distributed values (Rousseeuw and Croux 1993), but at least kMinSpread of the median.
  Limits limits(std::int64_t last_known_step) const;
  static constexpr std::size_t kHistory = 128, kMinHistory = 32;
  static constexpr double kMinSpread = 0.02;

  void accept(std::int64_t step, double loss, double norm);
  // Returns what to do after a bad step: train.on_bad_step, or stop if there were too many bad steps.
  OnBadStep action_for_bad_step(std::int64_t step) const;
  void add_bad_step(const BadStep& bad) { bad_.push_back(bad), update_state(); }
  const std::vector<BadStep>& bad_steps() const { return bad_; }

  std::string* state() { return &state_; }  // state that checkpoints save
  void on_state_loaded();                   // call after loading state()
  // Call after a rollback has loaded an earlier checkpoint. Keeps the history of accepted steps from the checkpoint,
  // and restores the bad steps that were known before the rollback.
  void on_rollback(std::vector<BadStep> known_before);

 private:
  struct Accepted {
    std::int64_t step;
    double loss, norm;
  };
  void update_state();

  const TrainConfig& config_;
  std::deque<Accepted> history_;
  std::vector<BadStep> bad_;
  std::string state_ = "{}";
};

}  // namespace ring
