#include "trainer/time_spent.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace ring {

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  const auto two = [](std::int64_t v) { return str(v < 10 ? "0" : "", v); };
  if (s < 60) return str(s, "s");
  if (s < 3600) return str(s / 60, "m", two(s % 60), "s");
  if (s < 86400) return str(s / 3600, "h", two(s / 60 % 60), "m");
  return str(s / 86400, "d", two(s / 3600 % 24), "h");
}

std::string TimeSpent::text() const {
  constexpr double kWorthMentioning = 0.02;
  std::string text = format_duration(total);
  if (total - steps() <= kWorthMentioning * total) return text;
  text += str(": ", format_duration(steps()), " of steps");
  for (const auto& [seconds, what] : {std::pair(evaluations, " of evaluations"), std::pair(saves, " of saves"),
                                      std::pair(not_running, " stopped or without a CPU")})
    if (seconds >= 0.5) text += str(", ", format_duration(seconds), what);
  return text;
}

TimeSpent TimeAccount::spent() const {
  TimeSpent t{.evaluations = evaluations_, .saves = saves_};
  const double awake = seconds_now() - awake_since_;
  t.total = std::max(awake, 1e-9 * static_cast<double>(nanoseconds_now() - since_));
  t.not_running = t.total - awake;
  return t;
}

}  // namespace ring
