#pragma once
// Bytes of a model's persistent tensors in one process, from the first step or save to the last, predicted before
// anything is allocated.

#include <cstdint>
#include <functional>

#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

struct StateMemory {
  std::uint64_t weights = 0;  // weights that kernels read, without weight_buffers
  std::uint64_t master = 0;   // separate copy that the optimizer updates; 0 if there is none
  std::uint64_t exact = 0;    // in host memory: exact values of encoded weights (Param::encoded)
  std::uint64_t gradients = 0;
  std::uint64_t optimizer_states = 0;
  std::uint64_t residuals = 0;         // residuals of compressed gradients (parallel.compress)
  std::uint64_t outer = 0;             // in host memory: outer optimizer of islands (parallel.local_steps)
  std::uint64_t average = 0;           // moving average of the weights, if enabled
  std::uint64_t watched = 0;           // in host memory: values before an update, if update sizes are measured
  std::uint64_t weight_buffers = 0;    // ZeRO-3: gathered units of weights
  std::uint64_t gradient_buffers = 0;  // ZeRO-2 and 3: units of gradients until they are reduced
  std::uint64_t snapshot = 0;          // in host memory: the copy that checkpoints are written from
  std::uint64_t staging = 0;           // device buffers for states in transit to and from host memory
  OwnedShard owned{};                  // the parameters that this process updates, without tensors
  std::uint64_t buffers() const { return weight_buffers + gradient_buffers; }
  std::uint64_t total() const {
    return weights + master + exact + gradients + optimizer_states + residuals + outer + average + watched + buffers() +
           snapshot + staging;
  }
};

// Returns the bytes of the optimizer's states for a rank's shard.
using StateBytes = std::function<std::uint64_t(const OwnedShard&)>;

// Predicts the bytes for rank `rank` of the `ranks` ranks that share the data (dp x cp). model: declared, not
// allocated; its flat layout is computed here. Assumes that no states are in host memory (staging = 0) and that no
// weights are averaged.
StateMemory state_memory(Model& model, int zero, int ranks, int rank, const ParamTypes&, const StateBytes&);

}  // namespace ring
