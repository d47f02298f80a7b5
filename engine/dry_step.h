#pragma once
// What a training step takes, known without computing it: the step itself runs on a fake stream (core/fake.h), among
// fake ranks (comm/fake.h), with all that its code allocates, calls and exchanges.

#include <map>
#include <string>
#include <vector>

#include "comm/fake.h"
#include "core/memory_plan.h"
#include "engine/config.h"
#include "kernels/kernel.h"
#include "model/activation_plan.h"

namespace ring {

// The memory of a part of the model while one pass over it ran, in bytes; the largest over the micro-batches.
struct PartMemory {
  ScopeId part;
  std::size_t before = 0;                           // in use when the forward began
  std::size_t kept = 0;                             // from its forward to its backward
  std::size_t forward_peak = 0, backward_peak = 0;  // above `before`
  std::size_t host = 0;                             // that leave for the host and come back
  // In a segment, whose forward runs again in the backward: of the first forward, which keeps nothing of a part.
  std::size_t once_before = 0, once_peak = 0;
};

struct DryCall {  // of a kernel
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
  std::size_t weights = 0, gradients = 0, optimizer_states = 0;  // of this rank's device; weights: with their average
  std::size_t weight_buffers = 0, gradient_buffers = 0;          // of these, what parts take turns in (parallel.zero)
  std::size_t lasting = 0;                                       // these, inputs and all else that outlives a step
  MemoryPlan plan;                                               // of what lives within a step
  std::size_t host = 0;                                          // of activations that are offloaded
  std::size_t host_states = 0;                                   // of states and values that are (optimizer.offload)
  std::size_t stayed = 0;                                        // that were to be, and found no room
  std::vector<PartMemory> parts;                                 // in the order of the forward pass
  std::vector<DryCall> calls;
  std::vector<DryTransfer> transfers;
  std::size_t peak() const { return lasting + plan.bytes; }
};

// config: resolved, run.device cpu or cuda; both are planned on any machine. Of documents
// that are packed it sees each sample as one. Error: the layout does not fit `world` processes.
DryStep dry_step(const Config& config, int world, const ActivationPlan&, int rank = 0);

}  // namespace ring
