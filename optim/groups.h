#pragma once
// Binds optimizer.kind and optimizer.groups to a model's parameters: each parameter's update rule, learning rate and
// weight decay, and whether it is frozen.

#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "model/params.h"
#include "optim/config.h"

namespace ring {

// Sets the group, frozen flag and update FLOPs of every parameter. Call before lay_out(). Adds the problems found, like
// the validate() of a settings section: a pattern that matches no parameter, an entry whose parameters all belong to
// later entries or are frozen because of model.lora, a kind that updates none of its group's parameters, or no
// parameter left to train.
void bind_groups(const OptimizerConfig&, Parameters& declared, std::vector<SettingProblem>& errors);
// Same, but throws Error with the first problem.
void bind_groups(const OptimizerConfig&, Parameters& declared);

// Adds a problem for each setting of an update kind that is used neither by optimizer.kind nor by a group.
void add_unused_settings(const OptimizerConfig&, std::vector<SettingProblem>& errors);

// Return the update kind, the learning rate factor and the weight decay of a bound parameter.
std::string optimizer_kind_of(const OptimizerConfig&, const Param&, const LogicalParam&);
float lr_scale_of(const OptimizerConfig&, const LogicalParam&);  // factor on optimizer.lr
float weight_decay_of(const OptimizerConfig&, const Param&, const LogicalParam&);

// Returns the names of a parameter's optimizer states in checkpoints that were written with these settings, e.g.
// "m.<name>". Ignores the group that the parameter is bound to now.
std::vector<std::string> saved_states(const OptimizerConfig&, const Param&, const LogicalParam&);

// Returns a line for each set of parameters that are updated in the same way, if there are several:
// "blocks.0.attention.q.weight and 11 more (1.2 M): adamw, lr 0.001, weight_decay 0.1".
std::vector<std::string> describe_groups(const OptimizerConfig&, const Parameters& bound);

}  // namespace ring
