#pragma once
// Chooses the cores of a node's workers: near the worker's GPU, or, without GPUs, spread over the NUMA nodes.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machine.h"

namespace ring {

// torchrun's values, and two of our own. `node`: all cores of the worker's NUMA node. `socket`: all cores of that
// node's processor. `exclusive`: the worker's share of the node's physical cores. `core_complex`: cores that share a
// last-level cache. `automatic`: `node` if that leaves no core unused and the GPUs' nodes are known, else `none`.
enum class NumaBinding : std::uint8_t { automatic, none, node, socket, exclusive, core_complex };

struct WorkerBinding {
  std::vector<int> cores = {};  // sorted; empty means all cores of the agent
  std::vector<int> nodes = {};  // preferred NUMA nodes
  int gpu = -1;                 // CUDA index in the worker; -1 if there is no GPU
  int workers = 1;              // number of workers with the same cores
  int threads() const { return std::max(1, static_cast<int>(cores.size()) / workers); }
};

struct BindingRequest {
  NumaBinding binding = NumaBinding::automatic;
  int workers = 1;
  std::vector<int> allowed;  // cores on which the agent may run
  // GPUs by CUDA index in the workers; nullopt if CUDA's numbering is unknown (visible_gpus()), empty if workers use no
  // GPU.
  std::optional<std::vector<Gpu>> gpus{};
};

// Returns one WorkerBinding per worker. With fewer GPUs than workers, all workers compute on CPUs. Throws Error if the
// requested binding is not possible.
std::vector<WorkerBinding> choose_bindings(const Machine&, const BindingRequest&);

// Returns lines, e.g. "rank 4 on GPU 0: cores 0-31 of NUMA node 0"; consecutive ranks with the same cores share a line.
// Empty if no worker is bound.
std::vector<std::string> describe_bindings(const std::vector<WorkerBinding>&, int first_rank);

}  // namespace ring
