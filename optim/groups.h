#pragma once
// optimizer.kind and optimizer.groups, bound to the parameters of a model: which rule updates which of them, with what
// learning rate and weight decay, and which are frozen.

#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "model/params.h"
#include "optim/config.h"

namespace ring {

// Before parameters get their places. Adds what is wrong, as validate() of a section does: a pattern that names no
// parameter, an entry all of whose parameters are in later ones, a kind that updates none of those that its group
// names, or nothing is left to train.
void bind_groups(const OptimizerConfig&, Parameters& declared, std::vector<SettingProblem>& errors);
// Error: the first of them.
void bind_groups(const OptimizerConfig&, Parameters& declared);

// Adds each setting of a kind that neither optimizer.kind nor a group asks for.
void add_unused_settings(const OptimizerConfig&, std::vector<SettingProblem>& errors);

// What updates a parameter that is bound, how quickly, and how much it decays:
std::string kind_of(const OptimizerConfig&, const Param&, const LogicalParam&);
float lr_scale_of(const OptimizerConfig&, const LogicalParam&);  // on optimizer.lr
float weight_decay_of(const OptimizerConfig&, const Param&, const LogicalParam&);

// The states of the optimizer that checkpoints of such settings hold of a parameter, however it is bound now:
// "m.<name>".
std::vector<std::string> saved_states(const OptimizerConfig&, const Param&, const LogicalParam&);

// A line for each set of parameters that are updated alike, where there are several: "blocks.0.attention.q.weight and
// 11 others (1.2 million): adamw, lr 0.001, weight_decay 0.1".
std::vector<std::string> describe_groups(const OptimizerConfig&, const Parameters& bound);

}  // namespace ring
