#pragma once
// The option --weights: which weights of a checkpoint to use.

#include "cli/command.h"
#include "evaluate/session.h"

namespace ring {

// Adds --weights: latest or ema.
Option add_weights(Command command, SavedWeights& choice);

}  // namespace ring
