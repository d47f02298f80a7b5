#pragma once
// Parts of an attention section that have their own weights or gates. A layer gets such a part only by training.

#include <cstdint>
#include <span>
#include <string>

#include "model/attention/config.h"

namespace ring {

struct TrainedPart {
  bool (*in)(const AttentionConfig&);  // returns true if the section has the part
  const char* name;                    // "an indexer"
  const char* purpose;                 // completes "weights cannot ...": "select blocks"
  const char* setting;                 // the setting that turns the part on, such as "pattern: learned"
  const char* without;                 // the setting without the part, which needs no training: "pattern: content"
};

std::span<const TrainedPart> trained_parts();

// Returns the features of a layer of this section that a pattern cannot express, as in "has an indexer (pattern:
// learned)"; empty if a pattern expresses everything.
std::string why_not_static_pattern(const AttentionConfig&, std::int64_t kv_heads);

}  // namespace ring
