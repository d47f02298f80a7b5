#pragma once
// Compares runs of several ranks with a run of one rank.

#include <string>
#include <vector>

#include "tests/layouts/request.h"

namespace ring::test {

// Maximum accepted relative differences.
struct Tolerance {
  double loss = 0, norm = 0;
};

// Largest relative differences over all steps; infinite if the numbers of steps differ or a value is not finite.
struct Distance {
  double loss = 0, norm = 0;
};
Distance distance(const Reply& one, const Reply& many);

// Returns how the run of these ranks differs from the run of one rank; "" if they agree. Reports the first of these
// that applies: errors of ranks; ranks with different losses or norms; ranks that hold different bits of the same
// region of the state; the first step whose loss or gradient norm exceeds the tolerance, as "loss of step 7 is 5.5431,
// one rank has 5.542 (relative 2.0e-04, at most 1e-04)".
std::string disagreement(const Reply& one, const std::vector<Reply>& ranks, const Tolerance&);

}  // namespace ring::test
