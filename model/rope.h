#pragma once
// Rotary positions as the config asks for them.

#include <vector>

#include "autograd/ops.h"
#include "model/config.h"

namespace ring {

// theta^(-2i/D), i < D/2, scaled as the config says (RopeScaling). length: of the sequence in tokens, which dynamic
// scaling looks at; 0: within its original context.
std::vector<float> rope_frequencies(const RopeConfig&, std::int64_t head_dim, std::int64_t length = 0);

// Sequences::inv_freq: each document's frequencies, with seen[b] tokens of document b before these (empty: none).
// Undefined where dynamic scaling stretches none of them.
Tensor stretched_frequencies(const RopeConfig&, std::int64_t head_dim, const Sequences&,
                             const std::vector<std::int32_t>& seen, const ExecContext&);

// What rotated queries and keys are multiplied by: 1 but for yarn. Scores have its square in their scale instead.
double rope_attention_factor(const RopeConfig&);

}  // namespace ring
