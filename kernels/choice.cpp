#include "kernels/choice.h"

#include <algorithm>
#include <limits>

#include "core/log.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

using Run = std::function<void(std::size_t)>;

constexpr double kLong = 0.25;      // seconds: a call this long is not repeated more than once
constexpr double kLoading = 0.3;    // seconds that a first call takes longer at most
constexpr double kClearly = 0.97;   // of the time of one with a higher priority: less is noise
constexpr double kShortest = 1e-7;  // seconds, of a call

double seconds_of(const Run& run, std::size_t i, int repeats, const ExecContext& ctx) {
  const Event start = ctx.stream.record_time();
  for (int n = 0; n < repeats; ++n) run(i);
  const Event end = ctx.stream.record_time();
  end.synchronize();  // host waits: start (measuring)
  return std::max(end.seconds_after(start) / repeats, kShortest);
}

// Infinite where memory is too short for it. best: of those measured before.
double seconds_of(const Run& run, std::size_t i, double best, const ExecContext& ctx) {
  try {
    const double first = seconds_of(run, i, 1, ctx);  // loads the kernel, makes plans
    if (first > kLong && first - kLoading > best) return first;
    if (first > kLong) return std::min(first, seconds_of(run, i, 1, ctx));
    const double once = seconds_of(run, i, 1, ctx);
    return seconds_of(run, i, 1 + static_cast<int>(ctx.tuning->seconds() / once), ctx);
  } catch (const OutOfMemory&) {
    return std::numeric_limits<double>::infinity();
  }
}

std::size_t fastest(const std::string& key, const std::vector<std::string_view>& names, const Run& run,
                    const ExecContext& ctx) {
  std::size_t best = 0;
  std::vector<double> seconds;
  std::string times;
  for (std::size_t i = 0; i < names.size(); ++i) {
    seconds.push_back(seconds_of(run, i, i ? seconds[best] : std::numeric_limits<double>::infinity(), ctx));
    if (seconds[i] < kClearly * seconds[best]) best = i;
    times += str(i ? ", " : "", names[i], " ", 1e6 * seconds[i], " us");
  }
  log::debug("measured ", key, ": ", times);
  return best;
}

}  // namespace

std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const Run& run, const ExecContext& ctx) {
  std::string all;
  for (const std::string_view name : names) all += str(all.empty() ? "" : "|", name);
  const std::string key = str(slot, ", ", ctx.stream.impl().device_name(), ", ", all,
                              ctx.deterministic ? ", deterministic, " : ", ", shape);
  if (const auto known = ctx.tuning->find(key)) {
    const auto at = std::ranges::find(names, *known);
    if (at != names.end()) return static_cast<std::size_t>(at - names.begin());
    log::warn("the tuning file has '", *known, "' for ", key,
              ", which is none of them and is measured again; the bits of this run may differ from earlier ones");
  }
  const std::size_t best = ctx.stream.impl().recording() ? 0 : fastest(key, names, run, ctx);
  ctx.tuning->record(key, std::string(names[best]));
  return best;
}

}  // namespace ring
