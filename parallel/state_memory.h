#pragma once
// How many bytes of a model live in one process from the first step, or from the first save, to the last, known before
// any of them is allocated.

#include <cstdint>
#include <functional>

#include "model/model.h"
#include "parallel/owned_shard.h"

namespace ring {

struct StateMemory {
  std::uint64_t weights = 0;  // that kernels read
  std::uint64_t master = 0;   // where the optimizer updates another copy of them
  std::uint64_t gradients = 0;
  std::uint64_t optimizer_states = 0;
  std::uint64_t average = 0;           // of the weights, where there is one
  std::uint64_t watched = 0;           // in host memory: values before an update, where they are compared
  std::uint64_t weight_buffers = 0;    // ZeRO-3: for units of weights while they are gathered
  std::uint64_t gradient_buffers = 0;  // ZeRO-2 and 3: for units of gradients until they are summed
  std::uint64_t snapshot = 0;          // in host memory: what checkpoints are written from
  std::uint64_t staging = 0;           // for states that live in host memory, on their way to the device and back
  OwnedShard owned{};                  // what this process updates, of the declared model: no tensors
  std::uint64_t buffers() const { return weight_buffers + gradient_buffers; }
  std::uint64_t total() const {
    return weights + master + gradients + optimizer_states + average + watched + buffers() + snapshot + staging;
  }
};

// What the optimizer's states take, for what a rank owns.
using StateBytes = std::function<std::uint64_t(const OwnedShard&)>;

// model: declared, not allocated; it gets its layout. ranks: that share the data (dp x cp), of which this is `rank`.
// Nothing is in host memory (staging = 0) or averaged.
StateMemory state_memory(Model& model, int zero, int ranks, int rank, const ParamTypes&, const StateBytes&);

}  // namespace ring
