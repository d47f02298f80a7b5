#pragma once
#include "data/config.h"
#include "engine/config.h"

namespace ring {

// Warns about attention settings that have no effect on this run's sequences (model/ineffective_attention.h).
void warn_of_ineffective_attention(const Config& resolved, const Corpora&);

}  // namespace ring
