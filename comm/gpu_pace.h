#pragma once
// Finds GPUs that become slow during a run, by their clock. A GPU that lowers its clock holds up all ranks alike, so
// that the host's times (comm/pace.h) do not tell which one it is.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ring {

// Measurements of a rank's GPU over a window of steps. Sent between ranks as bytes.
struct GpuWindow {
  double sm_mhz = 0;           // mean while the GPU had work; 0 if not known
  double step_seconds = 0;     // median; Pace measures it where it is 0
  std::uint64_t throttle = 0;  // reasons seen, as GpuReading::throttle
  std::array<char, 24> bus{};  // PCI address, ends with 0
};

struct SlowGpu {
  int rank = 0;
  std::string bus;
  double sm_mhz = 0, usual_mhz = 0;       // now, and the median before
  double seconds = 0, usual_seconds = 0;  // of a step, likewise
  std::uint64_t throttle = 0;
};

class GpuJudge {
 public:
  static constexpr double kSlowClock = 0.9;  // of the usual clock, and below
  static constexpr double kLonger = 1.05;    // of the usual step, and above
  static constexpr int kWindows = 3;         // in a row, and as many before to know what is usual

  // windows: one of each rank. Returns GPUs whose clock and step have been slow for kWindows windows in a row; each GPU
  // once.
  std::vector<SlowGpu> window(const std::vector<GpuWindow>& windows);

 private:
  struct History {
    std::vector<double> mhz, seconds;  // of windows that were not slow
    int slow = 0;                      // windows in a row
  };
  std::vector<History> ranks_;
};

}  // namespace ring
