#pragma once
// Compares block sizes 64 and 128 for layers with kind: block_sparse: measures the part of a training step that depends
// on the block size, with the operands of a step.

#include <string>
#include <vector>

#include "engine/config.h"

namespace ring {

// Layers that have the same attention.
struct BlockLayers {
  // Settings sections of the layers, e.g. "model.attention", "model.attention_layers[0].attention".
  std::vector<std::string> keys;
  std::int64_t layers = 0;
  AttentionConfig attention;
};
// Returns the layers with kind: block_sparse, in the order of the settings.
std::vector<BlockLayers> block_sparse_layers(const ModelConfig&);

// Times of one layer and one micro-batch with one block size.
struct BlockTiming {
  AttentionConfig attention;         // the layers' attention with this block size
  double forward = 0, backward = 0;  // seconds
  // Seconds of selecting blocks and of training the selection, divided by the number of layers that share a selection.
  double routing = 0;
  double keys = 0;                                    // mean number of keys that a query sees
  std::string forward_candidate, backward_candidate;  // the kernels that a run would use
  double seconds() const { return forward + backward + routing; }
};

// Measures the block size of the settings first, then the other size. The model is reduced to one layer, one
// micro-batch, one process and sequences of `length` tokens. Throws Error if the rules keep all pairs of such
// sequences, or if there is too little memory.
std::vector<BlockTiming> time_blocks(const Config&, const BlockLayers&, std::int64_t length, double seconds_each);

// Returns the index of the size to use: the fastest size, but the first one unless the other is clearly faster.
std::size_t index_of_fastest(const std::vector<BlockTiming>&);

}  // namespace ring
