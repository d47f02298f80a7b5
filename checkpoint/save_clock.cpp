#include "checkpoint/save_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ring {
namespace {

constexpr double kFirstSeconds = 10;  // maximum time until the first save, which measures the cost
constexpr double kFirstCost = 0.02;   // cost in seconds that is assumed until the first save
constexpr double kMinCost = 1e-3;     // minimum cost in seconds

// Exponential moving average; `share` is the weight of the new value.
double averaged(double before, double value, double share) {
  return before > 0 ? before + share * (value - before) : value;
}

}  // namespace

void SaveClock::on_step(double seconds, bool while_saving) {
  if (!while_saving)
    quiet_step_ = averaged(quiet_step_, seconds, 0.1);
  else if (quiet_step_ > 0)
    slower_ += seconds - quiet_step_;
}

void SaveClock::on_save_end(double stall_seconds) {
  cost_ = averaged(cost_, std::max(kMinCost, stall_seconds + std::max(0.0, slower_)), 0.5);
}

double SaveClock::mtbf_seconds(double trained_seconds) const {
  return (config_.mtbf_hours * 3600 + trained_seconds) / static_cast<double>(1 + failures_);
}

// Limits the interval to at least the cost of a save and at most the MTBF.
double SaveClock::save_interval(double trained_seconds) const {
  if (!config_.automatic) return config_.minutes > 0 ? config_.minutes * 60 : std::numeric_limits<double>::infinity();
  const double cost = cost_ > 0 ? cost_ : kFirstCost, lasts = mtbf_seconds(trained_seconds);
  const double seconds = std::min(std::max(std::sqrt(2 * cost * lasts), cost), lasts);
  return cost_ > 0 ? seconds : std::min(kFirstSeconds, seconds);
}

}  // namespace ring
