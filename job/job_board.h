#pragma once
// State of a job as its agent knows it: written by the agent's thread, read by any thread.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/awake_clock.h"
#include "job/job_time.h"

namespace ring {

struct RankView {
  int rank = 0;
  std::string host;
  std::int64_t pid = 0, step = 0;  // step: the last one done
  std::string phase;               // e.g. "forward, writing: sync"
  double silent = 0;               // seconds without progress
  bool alive = true, stopped = false;
  std::optional<double> memory = {};  // resident bytes of the process
  std::string gpu = {};               // PCI address; empty if there is no GPU or its address is unknown
  // GPU metrics, set by the reader of the board. gpu_memory: bytes in use by all processes; gpu_utilization: 0 to 1.
  std::optional<double> gpu_memory = {}, gpu_celsius = {}, gpu_watts = {}, gpu_utilization = {}, gpu_sm_mhz = {};
  std::string gpu_slowed_by = {};  // reason for low clocks, as text; empty if clocks are not lowered
};

struct JobView {
  std::string waits_for;  // what the job waits for; empty while workers run
  std::string failure;    // failure of the previous attempt
  int attempt = 0, nodes = 1;
  // Index of this node, and number of workers on all nodes; nullopt before the rendezvous.
  std::optional<int> node, world;
  JobTime time;                 // the job's time as known on this node
  std::vector<RankView> ranks;  // the ranks on this node
};

class JobBoard {
 public:
  void write(JobView view) {
    const std::lock_guard lock(mutex_);
    view_ = std::move(view);
    written_ = Clock::now();
  }
  JobView read() const {
    const std::lock_guard lock(mutex_);
    return view_;
  }
  double age() const {  // seconds since the board was written
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(Clock::now() - written_).count();
  }

 private:
  using Clock = AwakeClock;
  mutable std::mutex mutex_;
  JobView view_;
  Clock::time_point written_ = Clock::now();
};

}  // namespace ring
