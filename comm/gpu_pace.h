#pragma once
// Finds GPUs that become slow during a run, by their clock. A GPU with a reduced clock delays all ranks equally, so the
// times measured on the host (comm/pace.h) do not tell which GPU it is.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// Measurements of a rank's GPU over a window of steps. Ranks exchange it as raw bytes.
struct GpuWindow {
  double sm_mhz = 0;           // mean clock while the GPU had work; 0 if unknown
  double step_seconds = 0;     // median seconds per step; if 0, Pace fills it in
  std::uint64_t throttle = 0;  // all reasons seen, as in GpuReading::throttle
  std::array<char, 24> bus{};  // PCI address, zero-terminated
};

struct SlowGpu {
  int rank = 0;
  std::string bus;
  double sm_mhz = 0, usual_mhz = 0;       // mean of this window, and median of the earlier windows
  double seconds = 0, usual_seconds = 0;  // seconds per step: of this window, and median of the earlier windows
  std::uint64_t throttle = 0;
};

class SlowGpuDetector {
 public:
  static constexpr double kSlowClock = 0.9;  // a GPU is slow if its clock is below this share of its usual clock
  // A GPU is slow only if steps also take longer than this multiple of the usual time.
  static constexpr double kLonger = 1.05;
  // A GPU is reported after this number of slow windows in a row. Usual values are known after as many windows.
  static constexpr int kWindows = 3;

  // Returns the GPUs whose clock and step time have now been slow for kWindows windows in a row. Each GPU is reported
  // once per run. `windows` has one entry per rank.
  std::vector<SlowGpu> add_window(const std::vector<GpuWindow>& windows);

 private:
  struct History {
    std::vector<double> mhz, seconds;  // values of the newest windows that were not slow
    int slow = 0;                      // number of slow windows in a row
  };
  std::vector<History> ranks_;
};

}  // namespace ring
