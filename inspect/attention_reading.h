#pragma once
// Measures what a trained model's attention does with a text: the pairs that each layer keeps, and the weights that
// dense attention over the same queries and keys would give them.

#include <cstdint>
#include <vector>

#include "inspect/attention_cells.h"
#include "inspect/attention_cost.h"
#include "model/attention_layer.h"
#include "model/model.h"

namespace ring {

// Results for one KV head: means over the queries of all its query heads.
struct HeadReading {
  double recall = 0;  // dense attention's total weight on the kept pairs, excluding pools
  // Entropies, in nats. entropy: over the keys that the layer attends to; a pair that counts m times is m keys, a pool
  // is one key. dense_entropy: over the weights of dense attention.
  double entropy = 0, dense_entropy = 0;
  PairCells weights;  // dense attention's weights, summed by cell
  PatternCost cost;
};

struct LayerReading {
  Pattern kept;  // the layer's pattern; if it selects blocks, the selection is stored as drawn block rules
  std::vector<HeadReading> heads;
  PatternCost cost;

  double mean(double HeadReading::*number) const;  // mean of `number` over the heads
};

// Measures one causal sequence on the CPU in f32. Takes as long as dense attention, and the memory of dense attention
// for 128 queries.
LayerReading read_attention(const AttendedHeads&, std::int64_t max_cells, const ExecContext&);

// Measures all layers in one forward pass over the tokens.
std::vector<LayerReading> read_layers(Model&, const std::vector<std::int32_t>& tokens, std::int64_t max_cells,
                                      const ExecContext&);

}  // namespace ring
