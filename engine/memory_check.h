#pragma once
// Whether the weights, gradients and optimizer states of a run, and the copies that checkpoints are written from and
// the launcher keeps, fit into the memory that there is, before any of them is allocated. Activations come on top and
// are not foreseen here: what this refuses cannot run with any batch.

#include <string>
#include <vector>

#include "checkpoint/memory_tier.h"
#include "comm/mesh/mesh.h"
#include "core/host_memory.h"
#include "engine/config.h"
#include "parallel/state_memory.h"

namespace ring {

// What the processes of one host, or the one of a GPU, want to hold.
struct MemoryNeed {
  StateMemory own;         // of this process
  std::uint64_t here = 0;  // of all processes that share the host's memory, this one included
  int processes = 1;       // how many these are
};

// The facts where it does not fit: bytes by kind, and what bounds them. Empty: it fits.
std::string shortage(const MemoryNeed&, const std::vector<MemoryBound>&);

// Collective. How the run may save: as its settings say, or, with a warning, with fewer copies of the state. tier: what
// the launcher keeps; null: nothing. Error, on every rank: the run does not fit, with what would help.
Saving check_memory(const Config& resolved, Mesh&, const MemoryTier* tier);
// Collective. How much host memory this process may take for its activations; 0: none is to leave. That is
// train.activation_offload_bytes, where it is given, and no more than what every rank has room for beside the copies
// for checkpoints, which is said in a warning.
std::size_t activation_room(const Config& resolved, Mesh&);
// The same of a model that only computes, in the memory of `device`.
void check_memory(Model& declared, Device, const ParamTypes&);

}  // namespace ring
