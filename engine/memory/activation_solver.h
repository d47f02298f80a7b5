#pragma once
// Which way each part of a step treats its activations (keeps them, computes them again, moves them to the host, ..),
// so that the memory of the device and of the host suffices and the step takes least time. Exact: a dynamic program
// from left to right over what nothing beats in bytes on the device, bytes on the host and time, in whole bytes and
// nanoseconds, less what provably ends up slower than a plan that is known (engine/memory/activation_bound.h). The same
// choice on every rank.

#include <optional>

#include "engine/memory/activation_options.h"

namespace ring {

struct ActivationChoice {
  std::vector<int> options;  // of each part
  std::size_t peak = 0;      // on the device, the base included
  std::size_t host = 0;
  std::int64_t nanoseconds = 0;
};

// What a choice takes. base: what is in use before the first part.
ActivationChoice judged(const PartOptions&, std::vector<int> options, std::size_t base);

// The fastest choice whose peak and host bytes are within the budget. Nothing: there is none.
std::optional<ActivationChoice> solve_activations(const PartOptions&, std::size_t base, ActivationBudget);

// The smallest memory of the device for which there is one, with so much of the host.
std::size_t least_budget(const PartOptions&, std::size_t base, std::size_t host = 0);

}  // namespace ring
