#pragma once
// Settings of attention that change as tokens are trained (core/token_schedule.h).

#include <cstdint>
#include <limits>
#include <vector>

#include "model/config.h"

namespace ring {

inline constexpr std::int64_t kAfterAllTokens = std::numeric_limits<std::int64_t>::max();

// Returns the settings after this many trained tokens, with no further changes scheduled. Memory is planned for the
// original settings, which are the most expensive ones of the run.
ModelConfig with_attention_at(ModelConfig, std::int64_t tokens);

// Returns the token counts at which a setting changes, ascending; empty if nothing changes.
std::vector<std::int64_t> attention_change_points(const ModelConfig&);
// Returns how many of the changes have happened. The settings are the same for all token counts with the same stage.
std::size_t attention_stage(const std::vector<std::int64_t>& changes, std::int64_t tokens);

}  // namespace ring
