#pragma once
// Compares the cost of each kind of attention at a given context, with settings for that context: the table that
// `ringmaster plan --advise` prints. Quality is not predicted; docs/measured/attention.md measures it.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

struct AttentionAdvice {
  std::string name;  // name of the SuggestedAttention (model/attention/suggestions.h)
  AttentionConfig attention;
  std::string yaml;                 // as in a config, e.g. "{kind: window, window: 4096, sinks: 4}"
  double pairs = 0;                 // query-key pairs kept, relative to dense attention
  double flops = 0;                 // FLOPs of attention in a step, forward and backward, over all processes
  std::optional<PlannedStep> step;  // step in the fastest layout; nullopt if none fits
  double share = 0;                 // attention's share of the step's time
};

// Returns one entry for each suggested_attention(), used in all layers in place of the model's own attention. The
// suggestion's window is the widest (a power of two) whose attention takes at most a quarter of the step's time.
// layout: used for all kinds; without it, each kind gets its fastest layout, which takes longer to find. The longest
// context that fits is the same for all kinds as for dense attention, because the memory that a step keeps does not
// depend on the kind. progress: called before each kind is planned.
std::vector<AttentionAdvice> advise_attention(const PlanRequest&, const std::optional<PlannedStep>& layout,
                                              const PlanProgress& progress = {});

}  // namespace ring
