#pragma once
// Chooses what each block of a run does with its activations (save, recompute, offload), so that the run fits into
// memory. train.recompute and train.activation_offload are obeyed if given; if they are auto, the solver chooses from
// the memory and the cost of the step (engine/dry_step.h, engine/memory/activation_solver.h).

#include <cstdint>
#include <optional>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/dry_step.h"
#include "engine/memory/cost_model.h"

namespace ring {

struct ActivationFit {
  ActivationPlan plan;
  std::size_t peak = 0;       // predicted bytes on this rank's device; 0 if nothing was predicted
  std::size_t budget = 0;     // upper bound on the peak, in bytes
  double seconds = 0;         // predicted extra time of a step, compared with saving all activations
  std::size_t host_room = 0;  // bytes of host memory that blocks may use; activations that exceed it stay on the device
  std::size_t host = 0;       // predicted bytes of host memory that blocks use in each micro-batch
  std::size_t staging = 0;    // staging bytes chosen for offloaded states, included in the peak; 0 if not auto
  // Returns e.g. "12 blocks keep everything, 10 blocks recompute the MLP: 61.2 GiB of 75.0 GiB".
  std::string text() const;
};

// Returns the fastest plan whose peak is within `budget` bytes, as predicted by dry_step() for rank 0. Values of
// train.recompute and train.activation_offload other than auto are kept. If optimizer.offload_staging_bytes is auto,
// the staging memory gets what the plan leaves free. Returns nullopt if no plan fits; if `smallest` is not null, it
// then gets the plan with the lowest peak.
// host_room: bytes of host memory for activations. If not given, train.activation_offload_bytes is used, where 0 means
// that auto offloads nothing, because the size of the host memory is unknown.
std::optional<ActivationFit> find_activation_fit(const Config& resolved, WorldSize world, std::size_t budget,
                                                 const DeviceRates&, ActivationFit* smallest = nullptr,
                                                 std::optional<std::size_t> host_room = {});

// Returns true if a plan fits. Stops at the first plan that does; tries the plan that needs the least memory first.
bool can_fit(const Config& resolved, WorldSize world, std::size_t budget, const DeviceRates&);

std::size_t min_over_ranks(std::size_t own, Mesh&);  // minimum over all ranks; collective

// Returns the bytes that train.memory_budget allows each rank: the minimum over all ranks. Processes on one machine
// share its memory. Collective.
std::size_t memory_budget(const Config& resolved, Mesh& mesh);

}  // namespace ring
