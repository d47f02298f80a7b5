#pragma once
// The setting `pools`, of kinds that have it beside their own pairs.

#include <string>
#include <vector>

#include "kernels/attention/pattern.h"
#include "model/attention/config.h"

namespace ring {

// Whether the layer learns what its pools are made of.
bool learns_pools(const AttentionConfig&);
void validate_pools(const AttentionConfig&, std::vector<std::string>& errors);
Pattern with_pools(Pattern, const AttentionConfig&);
std::string pools_text(const AttentionConfig&);  // ", pools of 16, 64", ", learned pools of 16" or nothing

}  // namespace ring
