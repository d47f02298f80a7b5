#pragma once
// How often a job is restarted, judged by the optimizer steps that it makes.

#include <cstdint>
#include <string>

namespace ring {

class RestartBudget {
 public:
  explicit RestartBudget(int most) : most_(most) {}

  // An attempt failed with so many steps done. Empty: there shall be another one; otherwise why not. smaller: memory
  // ran out, and the next attempt takes less, which is progress, too.
  std::string spend(std::int64_t step, bool smaller = false);
  int used() const { return used_; }  // since there was progress
  int most() const { return most_; }

 private:
  int most_;
  int used_ = 0;
  int fruitless_ = 0;  // attempts in a row that came no further than one before
  int alike_ = 0;      // failures in a row at last_
  int smaller_ = 0;    // attempts in a row that took less memory and came no further
  std::int64_t farthest_ = 0, last_ = -1;
};

}  // namespace ring
