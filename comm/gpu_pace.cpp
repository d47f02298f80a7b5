#include "comm/gpu_pace.h"

#include "core/quantile.h"

namespace ring {
namespace {

constexpr std::size_t kMaxHistory = 50;  // maximum number of windows kept for each rank

void keep(std::vector<double>& values, double v) {
  if (values.size() == kMaxHistory) values.erase(values.begin());
  values.push_back(v);
}

}  // namespace

std::vector<SlowGpu> SlowGpuDetector::add_window(const std::vector<GpuWindow>& windows) {
  ranks_.resize(windows.size());
  std::vector<SlowGpu> found;
  for (std::size_t r = 0; r < windows.size(); ++r) {
    const GpuWindow& now = windows[r];
    History& h = ranks_[r];
    if (!(now.sm_mhz > 0) || h.slow >= kWindows) continue;  // unknown, or already reported
    const bool known = h.mhz.size() >= kWindows;
    const double mhz = known ? median(h.mhz) : 0, seconds = known ? median(h.seconds) : 0;
    if (known && now.sm_mhz < kSlowClock * mhz && now.step_seconds > kLonger * seconds) {
      if (++h.slow == kWindows)
        found.push_back(
            {static_cast<int>(r), now.bus.data(), now.sm_mhz, mhz, now.step_seconds, seconds, now.throttle});
    } else {
      h.slow = 0;
      keep(h.mhz, now.sm_mhz);
      keep(h.seconds, now.step_seconds);
    }
  }
  return found;
}

}  // namespace ring
