#pragma once
// Binds optimizer.kind and optimizer.groups to the parameters of a model: the update rule, learning rate and weight
// decay of each parameter, and whether it is frozen.

#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "model/params.h"
#include "optim/config.h"

namespace ring {

// Sets the group, frozen flag and update FLOPs of every parameter. Call before lay_out(). Adds the problems found, as a
// section's validate() does: a pattern that names no parameter, an entry whose parameters are all in later entries, a
// kind that updates none of its group's parameters, or nothing left to train.
void bind_groups(const OptimizerConfig&, Parameters& declared, std::vector<SettingProblem>& errors);
// Same, but throws Error for the first problem.
void bind_groups(const OptimizerConfig&, Parameters& declared);

// Adds a problem for each setting of a kind that neither optimizer.kind nor a group uses.
void add_unused_settings(const OptimizerConfig&, std::vector<SettingProblem>& errors);

// Return the update kind, the learning rate factor and the weight decay of a bound parameter.
std::string optimizer_kind_of(const OptimizerConfig&, const Param&, const LogicalParam&);
float lr_scale_of(const OptimizerConfig&, const LogicalParam&);  // factor on optimizer.lr
float weight_decay_of(const OptimizerConfig&, const Param&, const LogicalParam&);

// Returns the names of the optimizer states that checkpoints with these settings hold for a parameter, whatever it is
// bound to now: "m.<name>".
std::vector<std::string> saved_states(const OptimizerConfig&, const Param&, const LogicalParam&);

// Returns a line for each set of parameters with the same update, if there are several: "blocks.0.attention.q.weight
// and 11 more (1.2 M): adamw, lr 0.001, weight_decay 0.1".
std::vector<std::string> describe_groups(const OptimizerConfig&, const Parameters& bound);

}  // namespace ring
