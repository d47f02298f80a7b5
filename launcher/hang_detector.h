#pragma once
// Decides whether a worker hangs. Uses neither clocks nor processes: callers regularly pass the worker's progress and
// the time, and the detector measures how long steps take.
//
// Silence is the time without any sign of progress. Its limit depends on the worker's activity:
// - before the first step: no limit
// - step: `factor` times the 99th percentile of recent step times, but at least `min_limit`
// - validation, which gives a sign of progress for each batch: the limit of a step
// - save: `factor` times the longest earlier save, but at least the limit of a step
// The limit is `unmeasured` in the first validation, in the first save, and until `enough` steps are measured, since
// the first steps tune kernels. A fixed limit replaces the limit of a step and needs only one measured step. Time in
// which update() was not called (e.g. because the machine was suspended) does not count as silence.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/awake_clock.h"

namespace ring {

struct HangRules {
  using Seconds = std::chrono::duration<double>;
  bool on = true;
  std::optional<Seconds> fixed = {};  // limit within a step, used instead of a measured limit
  Seconds min_limit{10};
  double factor = 5;
  int enough = 16;
  Seconds unmeasured{300};
};

enum class Activity : std::uint8_t { unlimited, step, validation, save };

struct LifeSign {
  std::int64_t progress = 0;  // any counter that changes when there is progress
  std::int64_t step = 0;      // number of steps done
  Activity activity = Activity::unlimited;
  std::int64_t validations = 0, saves = 0;  // number of validations and saves that were started
};

class HangDetector {
 public:
  using Time = AwakeClock::time_point;
  using Seconds = HangRules::Seconds;

  HangDetector(const HangRules& rules, Time now) : rules_(rules), updated_(now), stepped_(now), began_(now) {}

  // Call several times a second. Returns true if the worker hangs.
  bool update(const LifeSign&, Time now);
  Seconds silence() const { return silence_; }
  Seconds silence_limit() const;  // current limit on silence

 private:
  void update_limits(const LifeSign&, Time now);
  void add_step_time(double seconds);
  Seconds step_limit() const;

  HangRules rules_;
  LifeSign last_;
  Time updated_, stepped_, began_;  // times: last update(), end of the last step, start of the activity
  Seconds silence_{0}, longest_save_{0};
  bool undisturbed_ = false;   // true if only steps have run since stepped_
  std::vector<double> steps_;  // durations in seconds of the last kWindow steps, as a ring buffer
  std::size_t next_ = 0;
  double percentile_99_ = 0;  // 99th percentile of steps_
};

}  // namespace ring
