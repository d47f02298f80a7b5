#pragma once
// Settings of attention that are allowed and do nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace ring {

// Why, and what to do, of each that does nothing in a run of so many steps with sequences of at most `longest` tokens:
// "model.attention.pools: ..".
std::vector<std::string> idle_attention(const ModelConfig& resolved, std::int64_t longest, std::int64_t steps);

}  // namespace ring
