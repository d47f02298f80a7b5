#pragma once
// Settings of attention that change as tokens are trained (core/token_schedule.h).

#include <cstdint>
#include <limits>
#include <vector>

#include "model/config.h"

namespace ring {

inline constexpr std::int64_t kAfterAllTokens = std::numeric_limits<std::int64_t>::max();

// As they are once so many tokens were trained: nothing in them changes any more. Memory is planned for the settings
// themselves, whose numbers are the largest of the run.
ModelConfig as_of(ModelConfig, std::int64_t tokens);

// From how many tokens on something is another than before, ascending; empty: nothing changes.
std::vector<std::int64_t> attention_changes(const ModelConfig&);
// How many of the changes have happened: between two of them the settings stay the same.
std::size_t attention_stage(const std::vector<std::int64_t>& changes, std::int64_t tokens);

}  // namespace ring
