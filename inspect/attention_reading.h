#pragma once
// What the attention of a trained model does with a text: which pairs it kept, and what dense attention over the same
// queries and keys would have given to them.

#include <cstdint>
#include <vector>

#include "inspect/attention_cells.h"
#include "inspect/attention_cost.h"
#include "model/layers.h"
#include "model/model.h"

namespace ring {

// One KV head; numbers are means over the queries of its query heads.
struct HeadReading {
  double recall = 0;  // weight that dense attention gives to the pairs that are kept, pools not among them
  // In nats: entropy of the weights over what the layer attends to (a pair that counts m times is m keys, a pool is
  // one), and of those of dense attention.
  double entropy = 0, dense_entropy = 0;
  PairCells weights;  // of dense attention
  PatternCost cost;
};

struct LayerReading {
  Pattern kept;  // a selection, if any, as a drawing
  std::vector<HeadReading> heads;
  PatternCost cost;

  double mean(double HeadReading::*number) const;  // over the heads
};

// One causal sequence, on a CPU in f32. Takes the time of dense attention, and memory for 128 queries of it.
LayerReading read_attention(const AttendedHeads&, std::int64_t most_cells, const ExecContext&);

// All layers, in a pass over the tokens.
std::vector<LayerReading> read_layers(Model&, const std::vector<std::int32_t>& tokens, std::int64_t most_cells,
                                      const ExecContext&);

}  // namespace ring
