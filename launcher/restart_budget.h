#pragma once
// Limits the restarts of a job, depending on the optimizer steps that it completes.

#include <cstdint>
#include <string>

namespace ring {

class RestartBudget {
 public:
  explicit RestartBudget(int max) : max_(max) {}

  // Call when an attempt failed after `step` steps. Returns "" for a restart, otherwise why there is none. smaller:
  // memory ran out and the next attempt uses less, which counts as progress.
  std::string spend(std::int64_t step, bool smaller = false);
  int used() const { return used_; }  // restarts since the last progress
  int max() const { return max_; }

 private:
  int max_;
  int used_ = 0;
  int fruitless_ = 0;  // attempts in a row that did not get beyond farthest_
  int alike_ = 0;      // failures in a row at step last_
  int smaller_ = 0;    // attempts in a row without progress in steps that used less memory
  std::int64_t farthest_ = 0, last_ = -1;
};

}  // namespace ring
