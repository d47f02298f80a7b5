#pragma once
// How well a model uses a long context: its loss by position.

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "model/model.h"

namespace ring {

// The tokens that were predicted at positions [first, end) of their windows: with first to end - 1 tokens before the
// one that predicts.
struct PositionBucket {
  std::int64_t first = 0, end = 0;
  double sum = 0;  // of their losses, in nats
  std::int64_t tokens = 0;
  double loss() const { return sum / static_cast<double>(tokens); }
};

// Buckets [0, 1), [1, 2), [2, 4), [4, 8), .. up to the windows' length; those without tokens are left out. `set`: of
// one rank, without packed documents.
std::vector<PositionBucket> losses_by_position(const Model&, const ExecContext&, const ValidationSet& set);

}  // namespace ring
