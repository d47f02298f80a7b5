#pragma once
// What each kind of attention would take at a context, with settings for that context: what `ringmaster plan --advise`
// prints. It says nothing of quality, which docs/measured/attention.md measures.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

struct AttentionAdvice {
  std::string name;  // "dense", "window", "dilated", "pools", or the pattern of the block_sparse rule
  AttentionConfig attention;
  std::string yaml;                 // "{kind: window, window: 4096, sinks: 4}"
  double pairs = 0;                 // kept, as a share of dense attention's
  double flops = 0;                 // of attention in a step, forward and backward, over all processes
  std::optional<PlannedStep> step;  // the fastest layout; nothing: none fits
  double share = 0;                 // of the step's time that attention takes
};

// Returns, in place of the model's own attention in all layers:
// * dense attention
// * the widest window (a power of two) whose attention takes at most a quarter of the step
// * LongNet's segments, which double from 2048 to the context, with rates that double
// * blocks whose number grows as the logarithm of the distance
// * blocks selected by content, by an indexer (learned) and by importance, of as many tokens as the window has
// * the window beside pools
// layout: for all kinds; without it, each kind gets its fastest, which takes longer to find. The longest context that
// fits is that of dense attention for all of them, because what a step keeps does not depend on the kind.
// progress: called before each kind is planned.
std::vector<AttentionAdvice> advise_attention(const PlanQuestion&, const std::optional<PlannedStep>& layout,
                                              const PlanProgress& progress = {});

}  // namespace ring
