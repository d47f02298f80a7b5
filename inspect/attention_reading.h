#pragma once
// Measures what the attention of a trained model does with a text: the pairs that each layer kept, and the weights that
// dense attention over the same queries and keys would give them.

#include <cstdint>
#include <vector>

#include "inspect/attention_cells.h"
#include "inspect/attention_cost.h"
#include "model/layers.h"
#include "model/model.h"

namespace ring {

// One KV head. Numbers are means over the queries of all its query heads.
struct HeadReading {
  double recall = 0;  // dense attention's weight on the kept pairs, pools excluded
  // In nats: entropy of the weights over the keys that the layer attends to (a pair that counts m times is m keys, a
  // pool is one key), and entropy of dense attention's weights.
  double entropy = 0, dense_entropy = 0;
  PairCells weights;  // weights of dense attention
  PatternCost cost;
};

struct LayerReading {
  Pattern kept;  // a selection, if there is one, is stored as a drawn block pattern
  std::vector<HeadReading> heads;
  PatternCost cost;

  double mean(double HeadReading::*number) const;  // mean of `number` over the heads
};

// Measures one causal sequence on the CPU in f32. Takes as long as dense attention, and memory for 128 queries of it.
LayerReading read_attention(const AttendedHeads&, std::int64_t max_cells, const ExecContext&);

// Measures all layers in one forward pass over the tokens.
std::vector<LayerReading> read_layers(Model&, const std::vector<std::int32_t>& tokens, std::int64_t max_cells,
                                      const ExecContext&);

}  // namespace ring
