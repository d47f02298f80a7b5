#pragma once
// Limits the number of restarts of a job, depending on the optimizer steps that the job completes.

#include <cstdint>
#include <string>

namespace ring {

class RestartBudget {
 public:
  explicit RestartBudget(int max) : max_(max) {}

  // Call when an attempt failed after `step` steps. Returns "" for a restart, else the reason why there is none.
  // less_memory: true if memory ran out and the next attempt uses less memory, which counts as progress.
  std::string request_restart(std::int64_t step, bool less_memory = false);
  int used() const { return used_; }  // number of restarts since the last progress
  int max() const { return max_; }

 private:
  int max_;
  int used_ = 0;
  int fruitless_ = 0;  // number of consecutive attempts that did not get beyond step farthest_
  int alike_ = 0;      // number of consecutive failures at step last_
  int smaller_ = 0;    // number of consecutive attempts that used less memory, without progress in steps
  std::int64_t farthest_ = 0, last_ = -1;
};

}  // namespace ring
