#pragma once
// Measures the memory and work of a training step without computing it: the step's own code runs on a fake stream
// (core/fake.h) with fake ranks (comm/fake.h), and its allocations, kernel calls and transfers are recorded.

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "comm/fake.h"
#include "core/memory_plan.h"
#include "engine/config.h"
#include "kernels/kernel.h"
#include "model/activation_plan.h"

namespace ring {

inline constexpr std::size_t kBoundless = std::numeric_limits<std::size_t>::max() / 4;  // bytes without a limit

// Bytes that one pass over a part of the model uses: the maximum over the micro-batches.
struct PartMemory {
  ScopeId part;
  std::size_t before = 0;                           // bytes in use when the part's forward begins
  std::size_t min_before = kBoundless;              // bytes in use when the forward begins: minimum over micro-batches
  std::size_t kept = 0;                             // saved by the forward for the backward
  std::size_t forward_peak = 0, backward_peak = 0;  // peak bytes beyond `before`
  std::size_t host = 0;                             // offloaded to the host and copied back
  std::size_t weights = 0, weights_again = 0;       // weights copied from the host for the forward, for the backward
  // Same as `before` and forward_peak, for the first forward of a part in a checkpointed segment. That forward saves
  // nothing for the part; the backward reruns it.
  std::size_t once_before = 0, once_peak = 0;
};

struct DryCall {  // one kernel call
  ScopeId part;
  ScopePass pass;
  std::string_view slot;
  Cost cost;
};

struct DryTransfer {
  ScopeId part;
  ScopePass pass;
  FakeTransfer transfer;
};

struct DryStep {
  std::size_t weights = 0, gradients = 0, optimizer_states = 0;  // on this rank's device; weights include train.ema
  // Buffers that are used by one part after another (parallel.zero); included in weights and gradients.
  std::size_t weight_buffers = 0, gradient_buffers = 0;
  // Everything that outlives a step: weights, gradients, optimizer_states, inputs and, on CPUs, the outer optimizer.
  std::size_t lasting = 0;
  MemoryPlan plan;              // memory that is allocated and freed within a step
  std::size_t unplanned = 0;    // peak bytes during a step that `plan` does not cover: keys of earlier chunks or slices
  std::size_t host = 0;         // offloaded activations
  std::size_t host_keys = 0;    // keys of earlier chunks on the host, with their gradients (train.sequence_chunk)
  std::size_t host_states = 0;  // offloaded states, values and weights (optimizer.offload)
  std::size_t host_outer = 0;   // on GPUs: outer optimizer (parallel.local_steps), including messages of all islands
  std::size_t host_weights = 0;   // on the host, not copied by updates: DataParallel::host_weight_bytes()
  std::size_t stayed = 0;         // activations that were to be offloaded but did not fit into host memory
  std::vector<PartMemory> parts;  // in the order of the forward pass
  std::vector<DryCall> calls;
  std::vector<DryTransfer> transfers;
  // Counts unplanned memory twice, because the allocator holds about as much again in free blocks of other sizes.
  std::size_t peak() const { return lasting + plan.bytes + 2 * unplanned; }
  std::size_t host_lasting() const { return host_states + host_outer + host_weights; }  // host bytes held between steps
};

// The processes of a run, and how many of them are on a node. Converts from a number of processes on one node.
struct WorldSize {
  int ranks = 1;
  int per_node = 0;  // 0 means all
  int islands = 1;   // if > 1, `ranks` counts the ranks of one island, whose settings have parallel.islands: 1
  WorldSize(int all = 1, int on_node = 0, int all_islands = 1) : ranks(all), per_node(on_node), islands(all_islands) {}
  operator int() const { return ranks; }
  int nodes() const { return per_node > 0 ? (ranks + per_node - 1) / per_node : 1; }
};

// Returns the lowest rank of a pipeline stage.
int first_rank_of_stage(const Config&, WorldSize world, int stage);

// Dry-runs a step of `rank`. config: resolved, with run.device cpu or cuda; both can be planned on any machine. Each
// sample of packed documents counts as one document. Throws Error if the layout does not fit `world` processes.
DryStep dry_step(const Config& config, WorldSize world, const ActivationPlan&, int rank = 0);

}  // namespace ring
