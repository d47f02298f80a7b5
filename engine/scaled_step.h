#pragma once
// Small layouts whose dry steps stand for the dry step of a layout with many processes, which would take minutes.

#include <vector>

#include "comm/fake.h"
#include "engine/dry_step.h"
#include "parallel/plan.h"

namespace ring {

// A small layout, and its weight: amounts (seconds, bytes of messages) of the large layout are weighted sums over small
// layouts.
struct ScaledStep {
  Config config;
  WorldSize world;
  double weight = 1;
};

// Returns the small layouts for a layout on several nodes. The tokens of a rank, tp, the micro-batch and the ranks per
// node stay. The ranks of cp, the context and the number of micro-batches become smaller, and the amounts of a step are
// linear in the ranks of cp and in the micro-batches. The weights extrapolate them; their sum is 1. If attention
// reaches only a few ranks, amounts grow less than linearly, and the result is an upper bound. The last layout is the
// largest, and needs as much memory as the large layout. ZeRO shards over as many ranks as in the large layout, but at
// most 1,024: with more, most ranks own less than one matrix.
//
// ring_ranks: ranks of cp in the smaller of two rings, rounded up to whole nodes. Returns the layout itself, with
// weight 1, if it is small or on one node. Throws Error if the layout is invalid.
inline constexpr int kFewRingRanks = 8;
std::vector<ScaledStep> scaled_steps(const Config&, WorldSize, int ring_ranks = kFewRingRanks);

// Returns the placement of a group of `ranks` ranks whose numbers differ by `stride`: a message without operation and
// bytes. Assumes that nodes begin at the group's first rank.
FakeTransfer placement_of_group(int ranks, int stride, WorldSize);

// Returns a message of a small layout's step with the ranks and nodes that its group has in the large layout.
FakeTransfer in_large_layout(FakeTransfer, const ParallelPlan& large, WorldSize);

}  // namespace ring
