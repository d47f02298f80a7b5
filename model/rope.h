#pragma once
// Rotary position embeddings, as configured.

#include <vector>

#include "autograd/ops.h"
#include "model/config.h"

namespace ring {

// Returns theta^(-2i/R) for i < R/2, where R = rotary_channels(), scaled as configured (RopeScaling). length: tokens of
// the sequence, used by dynamic scaling; 0 means that the sequence does not exceed original_context.
std::vector<float> rope_frequencies(const RopeConfig&, std::int64_t head_dim, std::int64_t length = 0);

// Returns the frequencies of each document for Sequences::inv_freq. Document b has seen[b] earlier tokens, or none if
// `seen` is empty. The result is undefined if dynamic scaling changes no document's frequencies.
Tensor stretched_frequencies(const RopeConfig&, std::int64_t head_dim, const Sequences&,
                             const std::vector<std::int32_t>& seen, const ExecContext&);

// Returns the factor on rotated queries and keys: 1 except for yarn. Callers multiply the scale of attention scores by
// the factor's square instead.
double rope_attention_factor(const RopeConfig&);

}  // namespace ring
