#pragma once
// Chooses how each part of a step treats its activations (save, recompute, offload, ...), so that device and host
// memory suffice and the step is fastest. Exact: a dynamic program from left to right over the plans that are
// Pareto-optimal in device bytes, host bytes and time (whole bytes and nanoseconds), without plans that are provably
// slower than a known one (engine/memory/activation_bound.h). Returns the same choice on every rank.

#include <optional>

#include "engine/memory/activation_options.h"

namespace ring {

struct ActivationChoice {
  std::vector<int> options;  // option of each part
  std::size_t peak = 0;      // bytes on the device, including the base
  std::size_t host = 0;
  std::int64_t nanoseconds = 0;
};

// Returns the peak of a choice of options. base: bytes in use before the first part.
ActivationChoice evaluate_options(const PartOptions&, std::vector<int> options, std::size_t base);

// Returns the fastest choice whose peak and host bytes are within the budget; nullopt if there is none.
std::optional<ActivationChoice> solve_activations(const PartOptions&, std::size_t base, ActivationBudget);

// Returns the minimum device budget for which a choice exists that uses at most `host` bytes of host memory.
std::size_t min_budget(const PartOptions&, std::size_t base, std::size_t host = 0);

}  // namespace ring
