#pragma once
#include "data/config.h"
#include "engine/config.h"

namespace ring {

// Warns of settings of attention that do nothing in the sequences that the run trains (model/idle_attention.h).
void warn_of_idle_attention(const Config& resolved, const Corpora&);

}  // namespace ring
