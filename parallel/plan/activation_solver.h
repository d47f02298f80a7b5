#pragma once
// Which way each part of a step treats its activations (keeps them, computes them again, ..), so that memory suffices
// and the step takes least time. Exact: a dynamic program from left to right over the Pareto front of (bytes kept so
// far, time), in whole bytes and nanoseconds. Of ways that cost the same time it takes one with a low peak, and the
// same one on every rank.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ring {

// One way to treat a part. Peaks are counted from what was in use when the part's forward began.
struct PartOption {
  std::size_t kept = 0;           // from its forward to its backward
  std::size_t forward_peak = 0;   // while its forward runs
  std::size_t backward_peak = 0;  // while its backward runs, with all that it kept or made again
  std::int64_t nanoseconds = 0;   // more than the fastest way takes
};

struct ActivationChoice {
  std::vector<int> options;  // of each part
  std::size_t peak = 0;      // the base included
  std::int64_t nanoseconds = 0;
};

// parts: in the order of the forward pass, each with the ways that it has. base: what is in use before the first.
// A step fits if base + (kept by all parts before) + (either peak of a part) <= budget for every part. Nothing: there
// is no such choice.
std::optional<ActivationChoice> solve_activations(const std::vector<std::vector<PartOption>>& parts, std::size_t base,
                                                  std::size_t budget);

// The smallest budget for which there is one.
std::size_t least_budget(const std::vector<std::vector<PartOption>>& parts, std::size_t base);

}  // namespace ring
