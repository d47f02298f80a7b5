#pragma once
// Limits the number of restarts of a job, depending on the optimizer steps that the job completes.

#include <cstdint>
#include <string>

namespace ring {

class RestartBudget {
 public:
  // Counts that a lost leader's successor continues from (launcher/succession.h).
  struct Counts {
    int used = 0;
    int fruitless = 0;  // number of consecutive attempts that did not get beyond step `farthest`
    int alike = 0;      // number of consecutive failures at step `last`
    int smaller = 0;    // number of consecutive attempts that used less memory, without progress in steps
    std::int64_t farthest = 0, last = -1;
    bool operator==(const Counts&) const = default;
  };

  explicit RestartBudget(int max) : max_(max) {}
  RestartBudget(int max, const Counts& counts) : max_(max), counts_(counts) {}

  // Call when an attempt failed after `step` steps. Returns "" for a restart, else the reason why there is none.
  // less_memory: true if memory ran out and the next attempt uses less memory, which counts as progress.
  std::string request_restart(std::int64_t step, bool less_memory = false);
  int used() const { return counts_.used; }  // number of restarts since the last progress
  int max() const { return max_; }
  const Counts& counts() const { return counts_; }

 private:
  int max_;
  Counts counts_;
};

}  // namespace ring
