#pragma once
// Where the workers of a node run: each near to its GPU, or spread over the machine's NUMA nodes where there is none.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machine.h"

namespace ring {

// torchrun's words, and two of our own. `node`: all cores of the worker's NUMA node; `socket`: of all nodes of that
// processor; `exclusive`: its share of the node's physical cores; `core_complex`: cores with one last-level cache.
// `automatic`: `node` where that leaves no core unused and the GPUs' nodes are known, else `none`.
enum class NumaBinding : std::uint8_t { automatic, none, node, socket, exclusive, core_complex };

struct Place {
  std::vector<int> cores = {};  // ascending; empty: wherever the agent may run
  std::vector<int> nodes = {};  // of memory that is preferred
  int gpu = -1;                 // by the number that the worker knows it by
  int workers = 1;              // that have these very cores
  int threads() const { return std::max(1, static_cast<int>(cores.size()) / workers); }
};

struct PlaceQuestion {
  NumaBinding binding = NumaBinding::automatic;
  int workers = 1;
  std::vector<int> allowed;                // cores that the agent may run on
  std::optional<std::vector<Gpu>> gpus{};  // of the workers, by their numbers; see visible_gpus()
};

// One for each worker. Fewer GPUs than workers: they compute on CPUs. Error: a binding that was asked for is not
// possible.
std::vector<Place> choose_places(const Machine&, const PlaceQuestion&);

// "rank 4 on GPU 0: cores 0-31 of NUMA node 0"; ranks that share cores are one line. None: nobody is bound.
std::vector<std::string> describe_places(const std::vector<Place>&, int first_rank);

}  // namespace ring
