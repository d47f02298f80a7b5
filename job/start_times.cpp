#include "job/start_times.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "core/clock.h"

namespace ring {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(StartStage::count)> kNames = {
    "failed", "noticed", "ended",    "spawned", "running",    "rendezvous", "device",
    "mesh",   "plan",    "verified", "model",   "checkpoint", "first step"};

double seconds(std::int64_t ns) { return std::round(static_cast<double>(ns) / 1e6) / 1e3; }

}  // namespace

bool StartTimes::mark_reached(StartStage stage) {
  std::int64_t& time = (*this)[stage];
  if (time != 0) return false;
  time = nanoseconds_now();
  return true;
}

void StartTimes::mark_process_start() {
  std::int64_t& time = (*this)[StartStage::spawned];
  if (time == 0) time = nanoseconds_now() - static_cast<std::int64_t>(1e9 * seconds_since_process_start());
}

std::string StartTimes::text() const {
  std::string parts;
  std::int64_t first = 0, last = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] == 0) continue;
    if (first == 0)
      first = at[i];
    else
      parts += str(parts.empty() ? "" : ", ", kNames[i], " ", seconds(at[i] - last));
    last = at[i];
  }
  return str(seconds(last - first), " s: ", parts);
}

// Field 22 of /proc/self/stat is the start time, in clock ticks since boot.
double seconds_since_process_start() {
  std::ifstream stat("/proc/self/stat"), up("/proc/uptime");
  std::string text, field;
  std::getline(stat, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  for (int i = 3; i <= 22; ++i) fields >> field;
  double uptime = 0;
  up >> uptime;
  return uptime - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace ring
