#pragma once
// Chooses how each part of a step treats its activations (save, recompute, offload, ..), so that device and host memory
// suffice and the step is fastest. Exact: a dynamic program from left to right over the Pareto-optimal plans in device
// bytes, host bytes and time (whole bytes and nanoseconds), without plans that are provably slower than a known one
// (engine/memory/activation_bound.h). Returns the same choice on every rank.

#include <optional>

#include "engine/memory/activation_options.h"

namespace ring {

struct ActivationChoice {
  std::vector<int> options;  // by part
  std::size_t peak = 0;      // bytes on the device, including the base
  std::size_t host = 0;
  std::int64_t nanoseconds = 0;
};

// Returns what a choice of options takes. base: bytes in use before the first part.
ActivationChoice evaluate_options(const PartOptions&, std::vector<int> options, std::size_t base);

// Returns the fastest choice whose peak and host bytes are within the budget; nullopt if there is none.
std::optional<ActivationChoice> solve_activations(const PartOptions&, std::size_t base, ActivationBudget);

// Returns the minimum device budget for which a choice exists with `host` bytes of the host.
std::size_t min_budget(const PartOptions&, std::size_t base, std::size_t host = 0);

}  // namespace ring
