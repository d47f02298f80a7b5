#pragma once
// Blocks of 64 and of 128 tokens for the layers of a model with kind: block_sparse, measured: what depends on them of a
// training step, on the operands of a step.

#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

// Layers whose attention is the same.
struct BlockLayers {
  std::vector<std::string> keys;  // of the sections: "model.attention", "model.attention_layers[0].attention"
  std::int64_t layers = 0;
  AttentionConfig attention;
};
// Those with kind: block_sparse, in the order of the settings.
std::vector<BlockLayers> block_sparse_layers(const ModelConfig&);

// A layer with blocks of one size and a micro-batch.
struct BlockTiming {
  AttentionConfig attention;         // with such blocks
  double forward = 0, backward = 0;  // seconds
  double routing = 0;                // seconds to select blocks, and to learn to; of layers that share: a share
  double keys = 0;                   // that the mean query sees
  std::string forward_candidate, backward_candidate;  // the kernels that a run would use
  double seconds() const { return forward + backward + routing; }
};

// First the size that the settings have, then the other one. The model is cut down to one layer and micro-batch, and
// its sequences to `length`; no process shares it. Error: the rules keep all of such sequences, or memory is too short.
std::vector<BlockTiming> time_blocks(const Config&, const BlockLayers&, std::int64_t length, double seconds_each);

// The number of the one to take: the fastest, but the first one unless another is clearly faster.
std::size_t fastest(const std::vector<BlockTiming>&);

}  // namespace ring
