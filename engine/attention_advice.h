#pragma once
// Compares the cost of each kind of attention at a given context, with settings for that context: the table that
// `ringmaster plan --advise` prints. Quality is not predicted; docs/measured/attention.md measures it.

#include <string>
#include <vector>

#include "engine/planner.h"

namespace ring {

struct AttentionAdvice {
  std::string name;  // as of SuggestedAttention (model/attention/suggestions.h)
  AttentionConfig attention;
  std::string yaml;                 // as in a config: "{kind: window, window: 4096, sinks: 4}"
  double pairs = 0;                 // query-key pairs kept, as a share of dense attention's
  double flops = 0;                 // of attention in a step, forward and backward, over all processes
  std::optional<PlannedStep> step;  // the fastest layout; nullopt if none fits
  double share = 0;                 // attention's share of the step's time
};

// Returns one entry for each suggested_attention(), used in all layers in place of the model's own attention. Its
// window is the widest (a power of two) whose attention takes at most a quarter of the step's time. layout: used for
// all kinds; without it, each kind gets its fastest layout, which takes longer to find. The longest context that fits
// is the same for all kinds, dense attention's, because the memory that a step keeps does not depend on the kind.
// progress: called before each kind is planned.
std::vector<AttentionAdvice> advise_attention(const PlanRequest&, const std::optional<PlannedStep>& layout,
                                              const PlanProgress& progress = {});

}  // namespace ring
