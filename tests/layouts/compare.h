#pragma once
// Runs of several ranks against a run of one rank.

#include <string>
#include <vector>

#include "tests/layouts/order.h"

namespace ring::test {

// Largest relative differences that are accepted.
struct Tolerance {
  double loss = 0, norm = 0;
};

// The largest relative differences over all steps; infinite if the numbers of steps differ or a value is not finite.
struct Distance {
  double loss = 0, norm = 0;
};
Distance distance(const Answer& one, const Answer& many);

// Returns how the run of these ranks differs from the run of one rank, or nothing if it agrees: the error of a rank;
// ranks with different losses, or with different bits in the same region of the state; then the first step whose loss
// or gradient norm is beyond the tolerance, as "loss of step 7 is 5.5431, one rank has 5.542 (relative 2e-04, at most
// 1e-04)".
std::string disagreement(const Answer& one, const std::vector<Answer>& ranks, const Tolerance&);

}  // namespace ring::test
