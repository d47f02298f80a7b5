#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ring {

namespace {

// Returns a factor that falls from 1 at the end of the warm-up to `last` at the end of the schedule.
double along_curve(const ScheduleConfig& c, double last, std::int64_t step, std::int64_t total) {
  // Returns the progress, 0 to 1, of a decay from step `from` to step `total`.
  const auto progress = [&](std::int64_t from) {
    const double span = static_cast<double>(std::max<std::int64_t>(1, total - from));
    return std::clamp(static_cast<double>(step - from) / span, 0.0, 1.0);
  };
  const double fall = 1.0 - last;
  switch (c.kind) {
    case ScheduleKind::constant: return 1.0;
    case ScheduleKind::cosine: return last + fall * 0.5 * (1 + std::cos(std::numbers::pi * progress(c.warmup_steps)));
    case ScheduleKind::linear: return 1.0 - fall * progress(c.warmup_steps);
    case ScheduleKind::wsd: {
      const std::int64_t length = c.decay_steps ? c.decay_steps : total / 5;
      return 1.0 - fall * progress(std::max(c.warmup_steps, total - length));
    }
  }
  return 1.0;
}

}  // namespace

double schedule_factor(const ScheduleConfig& c, std::int64_t step, std::int64_t total) {
  if (step < c.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(c.warmup_steps);
  return along_curve(c, c.final_lr, step, total);
}

double weight_decay_factor(const ScheduleConfig& c, std::int64_t step, std::int64_t total) {
  return along_curve(c, c.final_weight_decay, step, total);
}

}  // namespace ring
