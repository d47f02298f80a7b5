#pragma once
// The trained parts of attention sections.

#include <cstdint>
#include <string>
#include <vector>

#include "model/attention/trained_part.h"

namespace ring {

// Returns the parts of all block patterns and variants.
std::vector<TrainedPart> trained_parts();

// Returns the features of a layer of this section that a pattern cannot express, as in "has an indexer (pattern:
// learned)"; empty if a pattern expresses everything.
std::string why_not_static_pattern(const AttentionConfig&, std::int64_t kv_heads);

}  // namespace ring
