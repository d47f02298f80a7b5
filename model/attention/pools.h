#pragma once
// The setting `pools`, shared by the kinds that let tokens see pools in addition to their own (query, key) pairs.

#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "kernels/attention/pattern.h"
#include "model/attention/config.h"

namespace ring {

// Returns true if the layer learns the weights of its pools.
bool learns_pools(const AttentionConfig&);
void validate_pools(const AttentionConfig&, std::vector<SettingProblem>& errors);
Pattern with_pools(Pattern, const AttentionConfig&);
std::string pools_text(const AttentionConfig&);  // ", pools of 16, 64", ", learned pools of 16" or ""

}  // namespace ring
