#pragma once
// Decides when a checkpoint is due by time: checkpoint.minutes and checkpoint.auto. The clock of rank 0 decides for all
// ranks.
//
// auto: the lost time is minimal if saves are sqrt(2 x cost x MTBF) apart (Young, "A First Order Approximation to the
// Optimum Checkpoint Interval", 1974; Daly, 2006). The cost of a save is the time for which steps were stalled, plus
// their slowdown while it was written. The mean time between failures is (mtbf_hours + hours trained) / (1 + failures):
// mtbf_hours acts as a prior that counts as one failure.

#include <cstdint>

#include "checkpoint/config.h"

namespace ring {

class SaveClock {
 public:
  // Times are in seconds; all `now` must be of the same clock.
  SaveClock(const CheckpointConfig& config, double now) : config_(config), began_(now) {}

  void failures(std::int64_t count) { failures_ = count; }  // sets the run's failures so far
  void began(double now) { began_ = now, slower_ = 0; }     // a save began
  void on_step(double seconds, bool while_saving);          // a step ended
  void on_save_end(double stall_seconds);  // a save ended, after all its steps were reported with on_step()

  bool due(double now, double trained_seconds) const { return now - began_ >= save_interval(trained_seconds); }
  double save_interval(
      double trained_seconds) const;     // seconds between two saves; infinite if saves do not depend on time
  double cost() const { return cost_; }  // seconds that a save costs, recent saves weighted most; 0 if unknown
  double mtbf(double trained_seconds) const;

 private:
  const CheckpointConfig& config_;
  std::int64_t failures_ = 0;
  double began_;
  double quiet_step_ = 0;  // average seconds of a step while no save is running
  double slower_ = 0;      // seconds by which all steps since the latest save began were slower, summed
  double cost_ = 0;
};

}  // namespace ring
