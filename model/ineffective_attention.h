#pragma once
// Attention settings that are allowed but have no effect.

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

// Returns false if ineffective_attention() finds nothing, however long the sequences are.
bool may_be_ineffective(const ModelConfig&);

// Returns a message for each setting that has no effect in a run of `steps` steps with sequences of at most `longest`
// tokens, with the reason and the fix: "model.attention.pools: ..".
std::vector<std::string> ineffective_attention(const ModelConfig& resolved, std::int64_t longest, std::int64_t steps);

}  // namespace ring
