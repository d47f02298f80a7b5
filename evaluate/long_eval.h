#pragma once
// Measures how well a model uses a long context: its loss by position.

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "model/model.h"

namespace ring {

// Predictions at positions [first, end) of their windows. A prediction at position p is made by the window's token p,
// after p earlier tokens.
struct PositionBucket {
  std::int64_t first = 0, end = 0;
  double sum = 0;  // sum of the losses, in nats
  std::int64_t tokens = 0;
  double loss() const { return sum / static_cast<double>(tokens); }
};

// Returns buckets [0, 1), [1, 2), [2, 4), [4, 8), ... up to the length of the windows, without empty buckets. `set`
// must be made for a single rank and have no packed documents.
std::vector<PositionBucket> losses_by_position(const Model&, const ExecContext&, const ValidationSet& set);

}  // namespace ring
