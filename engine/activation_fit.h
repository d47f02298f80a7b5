#pragma once
// What each block of a run does with its activations, so that the run fits into its memory: train.recompute and
// train.activation_offload as they are given, or, where these are auto, solved from the step's own memory and costs
// (engine/dry_step.h, engine/memory/activation_solver.h).

#include <cstdint>
#include <optional>
#include <string>

#include "comm/mesh/mesh.h"
#include "engine/dry_step.h"
#include "engine/memory/cost_model.h"

namespace ring {

struct ActivationFit {
  ActivationPlan plan;
  std::size_t peak = 0;       // predicted, of this rank; 0: nothing was predicted
  std::size_t budget = 0;     // that it fits into
  double seconds = 0;         // of a step more than with everything kept, as predicted
  std::size_t host_room = 0;  // bytes of the host that the blocks may use; what finds no room stays on the device
  std::size_t host = 0;       // that they are predicted to use, of each micro-batch
  std::size_t staging = 0;  // for optimizer.offload_staging_bytes: auto, part of the peak; 0: three chunks, or as given
  std::string text() const;  // "12 blocks keep everything, 10 blocks compute the MLP again: 61.2 GiB of 75.0 GiB"
};

// The best plan within `budget` bytes of the first rank: exactly what dry_step() then takes. train.recompute and
// .activation_offload other than auto are taken as they are. host_room: bytes of the host; not given:
// train.activation_offload_bytes, of which 0 is none for auto: nobody knows this host. optimizer.offload_staging_bytes:
// auto gets what the plan leaves. Nothing: none fits, and `smallest`, where it is asked for, is the one that takes
// least.
std::optional<ActivationFit> find_activation_fit(const Config& resolved, int world, std::size_t budget,
                                                 const DeviceRates&, ActivationFit* smallest = nullptr,
                                                 std::optional<std::size_t> host_room = {});

// Whether there is one: whatever takes least is tried first.
bool fits_in_some_way(const Config& resolved, int world, std::size_t budget, const DeviceRates&);

std::size_t least_of(std::size_t own, Mesh&);  // of all ranks

// Bytes that train.memory_budget gives this rank; several processes of a machine share its memory.
std::size_t memory_budget(const Config& resolved, Mesh& mesh);

}  // namespace ring
