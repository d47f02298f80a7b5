#pragma once
// Makes the steps of a run fit into memory, by choosing the activation plan and the micro-batch when the run starts. If
// memory runs out nevertheless, a choice that needs less memory replaces the first one.

#include <cstdint>
#include <optional>
#include <string>

#include "engine/activation_fit.h"

namespace ring {

struct MemoryChoice {
  std::int64_t micro_batch = 1;  // sequences per replica
  ActivationFit fit;
  DeviceRates rates;  // rates on which the choice is based
  // Returns e.g. "12 blocks keep everything: 61.2 GiB of 75.0 GiB, 4 sequences at a time".
  std::string text() const;
  // Same, for the start of a run. lasting: description of weights, gradients and optimizer states. Returns e.g. "a step
  // is predicted to take 61.2 GiB of 75.0 GiB: weights .., and the rest for activations; 12 blocks keep everything, 4
  // sequences at a time". Without a prediction, the text begins with the weights.
  std::string text(const std::string& lasting) const;
};

// Returns the choice for a run, the same on every rank. Collective. The budget is the minimum over the ranks. `max`,
// if not 0, is a lower budget that is tried first; if nothing fits into it, warns and tries the full budget. host_room:
// bytes of host memory that activations may use on this rank. If nothing fits although train.recompute is auto and
// `max` is 0, throws Error, which names the budget that would suffice. Otherwise returns the smallest plan that the
// settings allow, with a warning that names what would fit.
MemoryChoice choose_memory(const Config& resolved, Mesh&, std::size_t host_room, std::size_t max = 0);

// Returns the largest micro-batch, at most half of `rows`, that divides the sequences of a replica and makes a valid
// layout; nullopt if there is none.
std::optional<std::int64_t> smaller_micro_batch(const Config& resolved, int world, std::int64_t rows);

// Returns advice, to end a message, for a step that does not fit with `rows` sequences at a time: settings that would
// need less memory and are not at their minimum yet.
std::string memory_advice(const Config& resolved, std::int64_t rows);

// Returns the next choice that needs less memory, for a run that ran out of memory with `before`; nullopt if there is
// none. If train.recompute is auto, more is recomputed, which keeps results bit-identical. If that saves nothing, the
// micro-batch shrinks, which changes the order in which gradients are added.
std::optional<MemoryChoice> smaller_choice(const Config& resolved, int world, const MemoryChoice& before);

}  // namespace ring
