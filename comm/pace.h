#pragma once
// Finds ranks that hold up the others. In a step all ranks wait for the slowest, so what counts is a rank's own time:
// what it computes, waits for data, and sends.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu_pace.h"
#include "core/clock.h"

namespace ring {

// Seconds of a step.
struct StepParts {
  double compute = 0, data = 0, network = 0;
  double own() const { return compute + data + network; }
};

struct SlowRank {
  int rank;
  double speed;           // of the median rank's
  std::string_view what;  // that takes it longest, compared with the others: "compute", "data", "network"
  double seconds, usual;  // of that in a step: its own, and the median rank's
};

// Knows no clock: it is given what the ranks measured in a window of steps.
class PaceJudge {
 public:
  static constexpr double kSlow = 0.85;  // of the median speed
  static constexpr int kWindows = 3;     // in a row
  // Seconds: less is noise, however short the steps are. On a machine that others use a rank loses its core that long.
  static constexpr double kLeastExcess = 2e-3;

  // Those that have been slow for as many windows now. One is named again only after a window in which it was not.
  std::vector<SlowRank> window(const std::vector<StepParts>& ranks);

 private:
  std::vector<int> slow_;  // windows in a row
};

class Pace {
 public:
  static constexpr std::size_t kWindow = 20;  // steps

  // Returns measurements of this rank's GPU since the previous call. Null if there is no GPU or no sensor of it.
  using GpuReader = std::function<GpuWindow()>;

  // host: of all ranks, tensors in host memory.
  explicit Pace(Communicator& host, GpuReader gpu = nullptr) : host_(host), gpu_(std::move(gpu)) {}

  // By every rank after each step, in which it waited `data` seconds for data. What it did since the call before
  // counts, also between steps, as the others wait for that, too. Every 20th call starts an operation, whose result the
  // next one takes: nobody waits for it.
  std::vector<SlowRank> step(double data);
  const std::vector<SlowGpu>& slow_gpus() const { return slow_gpus_; }  // found by the last step()

 private:
  StepParts parts_of(double data);
  void send();
  std::vector<SlowRank> receive();

  Communicator& host_;
  GpuReader gpu_;
  PaceJudge judge_;
  GpuJudge gpu_judge_;
  std::vector<SlowGpu> slow_gpus_;
  std::vector<StepParts> steps_;
  std::vector<double> seconds_;                              // of the same steps, with what was waited for others
  double since_ = seconds_now(), waited_ = 0, sending_ = 0;  // at the call before
  bool under_way_ = false;
  Tensor own_, all_;
  Work work_;
};

}  // namespace ring
