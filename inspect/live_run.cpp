#include "inspect/live_run.h"

#include <time.h>

#include <algorithm>

#include "core/clock.h"
#include "engine/run_directory.h"
#include "inspect/report.h"

namespace ring {
namespace {

constexpr double kMinSeconds = 1;  // minimum seconds between two readings
// Maximum age of a reading, in seconds, even if the file is unchanged: the run's process may be gone.
constexpr double kMaxAge = 10;

double seconds_of_this_thread() {  // returns CPU time
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

LiveRun::Stamp LiveRun::stamp_of(const std::string& file) {
  std::error_code none;
  Stamp s{std::filesystem::file_size(file, none), {}};
  if (none) return {};
  s.time = std::filesystem::last_write_time(file, none);
  return s;
}

std::shared_ptr<const LiveReading> LiveRun::read_if_changed() {
  const double now = seconds_now();
  if (reading_ && now < next_) return reading_;
  const Stamp stamp = stamp_of(RunDirectory(path_).metrics_file());
  if (reading_ && stamp == stamp_ && now < next_ + kMaxAge) return reading_;
  const double begin = seconds_of_this_thread();
  auto fresh = std::make_shared<LiveReading>();
  fresh->version = reading_ ? reading_->version + 1 : 1;
  fresh->run = read_report_run(path_, 0);
  fresh->markup = report_body(fresh->run);
  stamp_ = stamp;
  next_ = seconds_now() + std::max(kMinSeconds, (seconds_of_this_thread() - begin) / kShare);
  return reading_ = std::move(fresh);
}

}  // namespace ring
