#pragma once
// When a checkpoint is due by the clock: checkpoint.minutes and checkpoint.auto. Rank 0's decides for all.
//
// auto: what a run loses is least where sqrt(2 x cost x MTBF) lies between two saves (Young, "A First Order
// Approximation to the Optimum Checkpoint Interval", 1974; Daly, 2006). The cost of a save is the time for which steps
// were held up, and what they took longer while it was written. The mean time between failures is (mtbf_hours + hours
// trained) / (1 + failures): what the settings say counts like one failure.

#include <cstdint>

#include "checkpoint/config.h"

namespace ring {

class SaveClock {
 public:
  // All times in seconds, on any one clock.
  SaveClock(const CheckpointConfig& config, double now) : config_(config), began_(now) {}

  void failures(std::int64_t count) { failures_ = count; }  // of the run so far
  void began(double now) { began_ = now, slower_ = 0; }     // a save
  void step(double seconds, bool while_saving);             // was done
  void ended(double stall_seconds);                         // the save whose steps were told

  bool due(double now, double trained_seconds) const { return now - began_ >= between(trained_seconds); }
  double between(double trained_seconds) const;  // two saves; infinite: the clock does not matter
  double cost() const { return cost_; }          // of a save, the latest ones count most; 0: not known yet
  double mtbf(double trained_seconds) const;

 private:
  const CheckpointConfig& config_;
  std::int64_t failures_ = 0;
  double began_;
  double quiet_step_ = 0;  // seconds of a step without a save
  double slower_ = 0;      // what the steps since the latest save began took longer
  double cost_ = 0;
};

}  // namespace ring
