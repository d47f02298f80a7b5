#pragma once
// A part of an attention section that has its own weights or gates. A layer gets such a part only by training.

#include "model/attention/config.h"

namespace ring {

struct TrainedPart {
  bool (*in)(const AttentionConfig&);  // returns true if the section has the part
  const char* name;                    // e.g. "an indexer"
  const char* purpose;                 // completes "weights cannot ...": "select blocks"
  const char* setting;                 // the setting that turns the part on, such as "pattern: learned"
  const char* without;                 // the setting without the part, which needs no training: "pattern: content"
};

}  // namespace ring
