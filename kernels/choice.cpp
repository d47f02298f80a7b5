#include "kernels/choice.h"

#include <algorithm>
#include <limits>
#include <map>

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

std::map<std::string_view, std::string (*)()>& libraries() {
  static std::map<std::string_view, std::string (*)()> by_candidate;
  return by_candidate;
}

}  // namespace

bool add_choice_library(std::string_view candidate, std::string (*library)()) {
  libraries()[candidate] = library;
  return true;
}

std::string library_key(std::string_view candidate) {
  const auto at = libraries().find(candidate);
  return at == libraries().end() ? "" : ", " + at->second();
}

std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const Run& run, const ExecContext& ctx) {
  std::string all;
  for (const std::string_view name : names) all += str(all.empty() ? "" : "|", name);
  const std::string key = str(slot, ", ", ctx.stream.impl().device_name(), ", ", all,
                              ctx.deterministic ? ", deterministic, " : ", ", shape);
  const auto index_of = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  };
  const std::optional<std::string> known = ctx.tuning->find(key);
  if (known && index_of(*known) < names.size()) return index_of(*known);
  if (known)
    log::warn("expected the recorded choice for ", key, " to be one of these kernels, got '", *known,
              "'. It is chosen again; results may differ in rounding from earlier ones");
  const bool measures = ctx.tuning->measures() && !ctx.stream.impl().recording();
  const std::size_t best = measures ? fastest(key, names, run, ctx) : 0;
  const std::size_t holds = index_of(ctx.tuning->record(key, std::string(names[best]), known));
  return holds < names.size() ? holds : best;
}

}  // namespace ring
