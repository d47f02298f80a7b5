#pragma once
// The parts of an attention section that have weights or gates of their own, which only training gives to a layer.

#include <span>

#include "model/attention/config.h"

namespace ring {

struct TrainedPart {
  bool (*in)(const AttentionConfig&);  // whether a section has the part
  const char* name;                    // "an indexer"
  const char* purpose;                 // completes "weights cannot ...": "select blocks"
  const char *setting, *without;       // "pattern: learned", and "pattern: content", which needs no training
};

std::span<const TrainedPart> trained_parts();

}  // namespace ring
