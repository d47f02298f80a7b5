#pragma once
// Rotary positions as the config asks for them.

#include <vector>

#include "model/config.h"

namespace ring {

// theta^(-2i/D), i < D/2, scaled as the config says (RopeScaling).
std::vector<float> rope_frequencies(const RopeConfig&, std::int64_t head_dim);

// What rotated queries and keys are multiplied by: 1 but for yarn. Scores have its square in their scale instead.
double rope_attention_factor(const RopeConfig&);

}  // namespace ring
