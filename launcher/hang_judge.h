#pragma once
// Does a worker hang? It knows no clock and no process: it is told now and then how far the worker is, and measures
// itself how long steps take.
//
// Silence is the time without any sign of progress. Within a step it may last as long as `factor` times the longest of
// 99 in 100 recent steps, and always `least`. Until `enough` steps are measured (the first ones measure kernels; for a
// fixed limit one is enough), in the first validation and in the first save, `unmeasured` applies. Validation shows a
// sign for each batch and is judged like a step from then on; a save may take `factor` times the longest one before.
// Whatever comes before the first step is not judged here. Time in which nobody looked (a machine that slept) is not
// silence.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/awake_clock.h"

namespace ring {

struct HangRules {
  using Seconds = std::chrono::duration<double>;
  bool on = true;
  std::optional<Seconds> fixed = {};  // instead of what follows from the steps' times
  Seconds least{10};
  double factor = 5;
  int enough = 16;
  Seconds unmeasured{300};
};

enum class Activity : std::uint8_t { unjudged, step, validation, save };

struct Sign {
  std::int64_t progress = 0;  // any number that changes
  std::int64_t step = 0;      // done
  Activity activity = Activity::unjudged;
  std::int64_t validations = 0, saves = 0;  // begun
};

class HangJudge {
 public:
  using Time = AwakeClock::time_point;
  using Seconds = HangRules::Seconds;

  HangJudge(const HangRules& rules, Time now) : rules_(rules), looked_(now), stepped_(now), began_(now) {}

  // To be called several times a second. True: it hangs.
  bool look(const Sign&, Time now);
  Seconds silence() const { return silence_; }
  Seconds limit() const;  // on silence, now

 private:
  void measure(const Sign&, Time now);
  void keep(double step);
  Seconds step_limit() const;

  HangRules rules_;
  Sign last_;
  Time looked_, stepped_, began_;  // the last look, the end of the last step, the begin of the activity
  Seconds silence_{0}, longest_save_{0};
  bool undisturbed_ = false;   // nothing but steps since stepped_
  std::vector<double> steps_;  // seconds, of the last kWindow; a ring
  std::size_t next_ = 0;
  double percentile_99_ = 0;  // of them
};

}  // namespace ring
