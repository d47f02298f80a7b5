#pragma once
// Finds ranks that slow down the others. In each step all ranks wait for the slowest one, so only a rank's own time is
// compared: computing, waiting for data, and sending.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_pace.h"
#include "core/clock.h"

namespace ring {

// A rank's seconds per step, by cause.
struct StepParts {
  double compute = 0, data = 0, network = 0;
  double own() const { return compute + data + network; }
};

struct SlowRank {
  int rank;
  double speed;           // the median rank's seconds per step, divided by this rank's
  std::string_view what;  // the part with the largest excess: "compute", "data", "network"
  double seconds, usual;  // seconds per step in this part: this rank's, and the median rank's
};

// Judges the ranks' measurements of a window of steps. Reads no clock.
class SlowRankDetector {
 public:
  static constexpr double kSlow = 0.85;  // a rank is slow below this share of the median speed
  static constexpr int kWindows = 3;     // slow windows in a row until a report
  // A rank is slow only if it loses at least this many seconds per step. Less is noise, even if steps are short: on a
  // shared machine, another process may take a rank's core for as long.
  static constexpr double kMinExcess = 2e-3;

  // Returns the ranks that have now been slow for kWindows windows in a row. A rank is reported again only after a
  // window in which it was not slow.
  std::vector<SlowRank> add_window(const std::vector<StepParts>& ranks);

 private:
  std::vector<int> slow_;  // number of slow windows in a row, by rank
};

class Pace {
 public:
  static constexpr std::size_t kWindow = 20;  // steps per window

  // Returns measurements of this rank's GPU since the previous call. The function is null if there is no
  // GPU or no sensor for it.
  using GpuReader = std::function<GpuWindow()>;

  // host: communicator of all ranks, with tensors in host memory.
  explicit Pace(Communicator& host, GpuReader gpu = nullptr) : host_(host), gpu_(std::move(gpu)) {}

  // Every rank calls it after each step. data_seconds: time that the rank waited for data in this step. All time since
  // the previous call counts, also between steps, because the other ranks wait for it too. Every 20th call starts a
  // collective, and the next call takes its result, so that no rank blocks on it.
  std::vector<SlowRank> on_step(double data_seconds);
  const std::vector<SlowGpu>& slow_gpus() const { return slow_gpus_; }  // found by the last on_step()

 private:
  StepParts split_step_time(double data_seconds);  // splits the time since the previous call
  void start_exchange();                           // starts the exchange of a window
  std::vector<SlowRank> finish_exchange();         // takes the result of start_exchange()

  Communicator& host_;
  GpuReader gpu_;
  SlowRankDetector slow_rank_detector_;
  SlowGpuDetector slow_gpu_detector_;
  std::vector<SlowGpu> slow_gpus_;
  std::vector<StepParts> steps_;
  std::vector<double> seconds_;  // seconds of the same steps, including waits for other ranks
  double since_ = seconds_now(), waited_ = 0, sending_ = 0;  // time and totals at the previous call
  bool under_way_ = false;
  Tensor own_, all_;
  Work work_;
};

}  // namespace ring
