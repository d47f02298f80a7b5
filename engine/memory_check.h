#pragma once
// Checks, before anything is allocated, that the weights, gradients and optimizer states of a run fit into memory. This
// includes the copy from which checkpoints are written, and the copies that the launcher keeps. Activations are not
// included: a run that is refused here cannot train with any batch size.

#include <string>
#include <vector>

#include "checkpoint/memory_tier.h"
#include "comm/mesh/mesh.h"
#include "core/host_memory.h"
#include "engine/config.h"
#include "parallel/state_memory.h"

namespace ring {

// Memory that the processes on one host (or, on a GPU, one process) need.
struct MemoryNeed {
  StateMemory own;         // memory of this process
  std::uint64_t here = 0;  // bytes of all processes that share the host's memory, including this one
  int processes = 1;       // number of processes in `here`
};

// Returns a message with the bytes by kind and the limit that they exceed; empty if everything fits.
std::string shortage_message(const MemoryNeed&, const std::vector<MemoryBound>&);

// Returns how the run may save: as its settings say or, with a warning, with fewer copies of the state. tier: memory in
// which the launcher keeps copies; null if there is none. Throws Error, with advice, on every rank if the run does not
// fit. Collective.
Saving check_memory(const Config& resolved, Mesh&, const MemoryTier* tier);
// Returns the bytes of host memory that this process may use for activations; 0 if none are left. The result is
// train.activation_offload_bytes, if given, but at most the memory that every rank has left after the checkpoint
// copies; warns if that is less. Collective.
std::size_t activation_room(const Config& resolved, Mesh&);
// Throws Error if a model for inference does not fit into the memory of `device`.
void check_memory(Model& declared, Device, const ParamTypes&);

}  // namespace ring
