#include "kernels/choice.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/log.h"
#include "kernels/tuning.h"

namespace ring {
namespace {

using Run = std::function<void(std::size_t)>;

constexpr double kLongSeconds = 0.25;    // a call that takes longer is repeated at most once
constexpr double kMaxLoadSeconds = 0.3;  // maximum extra time that a first call needs, such as for loading the kernel
// A candidate replaces one of higher priority only if it takes less than this fraction of the time: the rest is noise.
constexpr double kMaxTimeRatio = 0.97;
constexpr double kMinCallSeconds = 1e-7;  // shorter measurements are rounded up to this

double seconds_of(const Run& run, std::size_t i, int repeats, const ExecContext& ctx) {
  const Event start = ctx.stream.record_time();
  for (int n = 0; n < repeats; ++n) run(i);
  const Event end = ctx.stream.record_time();
  end.synchronize();  // allowed host wait: start (reads a measured time)
  return std::max(end.seconds_after(start) / repeats, kMinCallSeconds);
}

// Returns the seconds of candidate i; infinity if it runs out of memory. best: the shortest time so far.
double seconds_of(const Run& run, std::size_t i, double best, const ExecContext& ctx) {
  try {
    const double first = seconds_of(run, i, 1, ctx);  // includes loading the kernel and making plans
    if (first > kLongSeconds && first - kMaxLoadSeconds > best) return first;
    if (first > kLongSeconds) return std::min(first, seconds_of(run, i, 1, ctx));
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
    if (seconds[i] < kMaxTimeRatio * seconds[best]) best = i;
    times += str(i ? ", " : "", names[i], " ", 1e6 * seconds[i], " us");
  }
  log::debug("measured ", key, ": ", times);
  return best;
}

std::string key_of(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                   const ExecContext& ctx) {
  std::string candidates;
  for (const std::string_view name : names) candidates += str(candidates.empty() ? "" : "|", name);
  return str(slot, ", ", ctx.stream.impl().device_name(), ", ", candidates,
             ctx.deterministic ? ", deterministic, " : ", ", shape);
}
// Returns the index of `name` in `names`, or names.size() if it is not there.
std::size_t index_in(const std::vector<std::string_view>& names, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
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

std::optional<std::size_t> known_choice(std::string_view slot, const std::string& shape,
                                        const std::vector<std::string_view>& names, const ExecContext& ctx) {
  const std::optional<std::string> known = ctx.tuning->find(key_of(slot, shape, names, ctx));
  const std::size_t index = known ? index_in(names, *known) : names.size();
  return index < names.size() ? std::optional(index) : std::nullopt;
}

void record_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                   std::size_t chosen, const ExecContext& ctx) {
  ctx.tuning->record(key_of(slot, shape, names, ctx), std::string(names[chosen]));
}

std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const Run& run, const ExecContext& ctx) {
  const std::string key = key_of(slot, shape, names, ctx);
  const std::optional<std::string> known = ctx.tuning->find(key);
  if (known && index_in(names, *known) < names.size()) return index_in(names, *known);
  if (known)
    log::warn("expected the recorded choice for ", key, " to be one of these kernels, got '", *known,
              "'. A kernel is chosen again, so results may differ in rounding from earlier results");
  const bool measures = ctx.tuning->measures() && !ctx.stream.impl().recording();
  const std::size_t best = measures ? fastest(key, names, run, ctx) : 0;
  const std::size_t chosen = index_in(names, ctx.tuning->record(key, std::string(names[best]), known));
  return chosen < names.size() ? chosen : best;
}

}  // namespace ring
