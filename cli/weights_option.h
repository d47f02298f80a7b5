#pragma once
// The option of the command line that says which weights of a checkpoint to take.

#include "cli/command.h"
#include "evaluate/session.h"

namespace ring {

// --weights: latest or ema.
Option add_weights(Command command, SavedWeights& choice);

}  // namespace ring
