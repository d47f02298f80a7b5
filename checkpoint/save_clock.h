#pragma once
// Decides when a checkpoint is due by time: checkpoint.minutes and checkpoint.auto. Rank 0's clock decides for all
// ranks.
//
// auto: the lost time is minimal if the interval between saves is sqrt(2 x cost x MTBF) (Young, "A First Order
// Approximation to the Optimum Checkpoint Interval", 1974; Daly, 2006). The cost of a save is the time for which steps
// were stalled, plus the slowdown of steps while the save was written. The mean time between failures is (mtbf_hours +
// hours trained) / (1 + failures): mtbf_hours acts as a prior that counts as one failure.

#include <cstdint>

#include "checkpoint/config.h"

namespace ring {

class SaveClock {
 public:
  // Times are in seconds; all values of `now` must be from the same clock.
  SaveClock(const CheckpointConfig& config, double now) : config_(config), began_(now) {}

  void failures(std::int64_t count) { failures_ = count; }  // sets how often the run has failed so far
  void began(double now) { began_ = now, slower_ = 0; }     // call when a save begins
  void on_step(double seconds, bool while_saving);          // call after each step
  void on_save_end(double stall_seconds);  // call after a save, once all its steps have been reported with on_step()

  bool due(double now, double trained_seconds) const { return now - began_ >= save_interval(trained_seconds); }
  double save_interval(
      double trained_seconds) const;  // returns the seconds between two saves; infinite if saves do not depend on time
  double cost() const { return cost_; }  // cost of a save in seconds, with most weight on recent saves; 0 if unknown
  double mtbf_seconds(double trained_seconds) const;

 private:
  const CheckpointConfig& config_;
  std::int64_t failures_ = 0;
  double began_;
  double quiet_step_ = 0;  // average seconds of a step without a save in progress
  double slower_ = 0;      // total seconds by which steps were slower than quiet_step_ since the latest save began
  double cost_ = 0;
};

}  // namespace ring
