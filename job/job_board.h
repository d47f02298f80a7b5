#pragma once
// What an agent knows of its job, for whoever shows it: the agent's thread writes it, any other one reads the newest.

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
  std::int64_t pid = 0, step = 0;  // step: done
  std::string phase;               // "forward, writing: sync"
  double silent = 0;               // seconds without progress
  bool alive = true, stopped = false;
  std::optional<double> memory = {};  // resident bytes of the process
  std::string gpu = {};               // its PCI address; empty: none, or not known
  // Filled in by whoever shows them. gpu_memory: bytes in use by anybody; gpu_utilization: 0 to 1.
  std::optional<double> gpu_memory = {}, gpu_celsius = {}, gpu_watts = {}, gpu_utilization = {}, gpu_sm_mhz = {};
  std::string gpu_slowed_by = {};  // why its clocks are low, in words; empty for no reason
};

struct JobView {
  std::string waits_for;  // while no worker runs; empty: they do
  std::string failure;    // of the attempt before
  int attempt = 0, nodes = 1;
  std::optional<int> node, world;  // of this node; workers on all of them; nothing: the nodes have not met yet
  JobTime time;                    // as far as this node knows it
  std::vector<RankView> ranks;     // of this node
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
  double age() const {  // seconds since it was written
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
